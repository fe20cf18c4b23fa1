package app

import "strconv"

// Thousands writes n with a comma after every three digits, as in 1,234,567.
func Thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Plural writes n and the noun, in the plural unless n is 1, as in "1 target" and "2,000 targets".
func Plural(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Thousands(n) + " " + noun
}
