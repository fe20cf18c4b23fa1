package promotiontype

import "slices"

var types = []Type{ //nolint:gochecknoglobals // a constant, but Go has none of this type
	point(),
	voucher(),
}

// All returns the promotion types. The caller may modify the slice.
func All() []Type { return slices.Clone(types) }

// ByName returns the type of that name, which is in upper case.
func ByName(name string) (t Type, known bool) {
	for i := range types {
		if types[i].Name == name {
			return types[i], true
		}
	}
	return Type{}, false
}

// Names returns the names of all types.
func Names() []string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.Name
	}
	return names
}

// Columns returns the columns for the values of all types in a campaign file. Types may share a
// column.
func Columns() []string {
	var columns []string
	for _, t := range types {
		if !slices.Contains(columns, t.Column) {
			columns = append(columns, t.Column)
		}
	}
	return columns
}
