package rules_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rulesOf returns the rule and words of each finding of a file.
func rulesOf(t *testing.T, file, text string) []string {
	t.Helper()
	list, err := inspect(file, text, wordings(), privateWords())
	require.NoError(t, err)
	var got []string
	for _, f := range list {
		got = append(got, f.class+" "+f.rule+" "+f.words)
	}
	return got
}

func TestWordRulesBite(t *testing.T) {
	t.Parallel()
	long := strings.TrimSpace(strings.Repeat("wo ", longestSentence))
	for name, c := range map[string]struct {
		file, text string
		want       []string // empty: it is fine
	}{
		"a word":                          {"x.md", "Nobody reads the stream.", []string{"readme word Nobody"}},
		"a word over two lines":           {"x.md", "The entries in\nhand are few.", []string{"readme word in hand"}},
		"a word in code":                  {"x.md", "The column `hint` is set.\n```\nnobody\n```\n", nil},
		"a letter":                        {"x.md", "The letter is stored.", []string{"readme word letter"}},
		"a dead letter":                   {"x.md", "The dead letter is stored. Names have lower-case letters, digits and dots.", nil},
		"an API's contract":               {"x.md", "The contract of the Money API has no such call.", nil},
		"a contract of elsewhere":         {"x.md", "The fields have the order of the contract.", []string{"readme word the contract"}},
		"an environment":                  {"x.md", "It starts the embedded home.", []string{"readme word home"}},
		"a page":                          {"x.md", "The home page links to it.", nil},
		"a document of elsewhere":         {"x.md", "Acks are lost (fact 23).", []string{"readme word fact 23"}},
		"a random seed":                   {"x.md", "The run uses seed 7.", nil},
		"a row a promotion":               {"x.md", "The table has one row a promotion.", []string{"readme word one row a promotion"}},
		"a row per promotion":             {"x.md", "The table has one row per promotion. A call of a handler ends in a second.", nil},
		"calls a second":                  {"x.md", "The limit is in calls a second.", []string{"readme word calls a second"}},
		"within a second":                 {"x.md", "It ends within a second, or after a minute.", nil},
		"a start":                         {"x.md", "It starts. What it reads is stored.", []string{"readme start What it reads is stored."}},
		"a question":                      {"x.md", "What is stored? The offset.", nil},
		"a heading":                       {"x.md", "# What it does\n\nIt reads.", nil},
		"a long sentence":                 {"x.md", long + "\nmore.", []string{"readme sentence wo wo wo wo wo wo wo wo …"}},
		"a sentence that is not too long": {"x.md", long + ".\nMore.", nil},
		"a long item":                     {"x.md", "- " + long[:30] + "\n- " + long[:30] + "\n- " + long[:30] + "\n", nil},
		"a long cell":                     {"x.md", "| a | b |\n|---|---|\n| " + long[:50] + " | b |\n", []string{"readme sentence wo wo wo wo wo wo wo wo …"}},
		"a cell of two sentences":         {"x.md", "| a | b |\n|---|---|\n| " + long[:26] + ". " + long[:26] + " | b |\n", []string{"readme sentence wo wo wo wo wo wo wo wo …"}},
		"arguments of a script":           {"x.lua", "-- KEYS[1] " + long[:39] + "\n-- ARGV[1] " + long[:39] + "\n", nil},
		"a long line":                     {"x.md", strings.Repeat("x", longestLine+1), []string{"readme line " + strings.Repeat("x", longestLine+1)}},
		"a long row":                      {"x.md", "| " + strings.Repeat("x", longestLine) + " |", nil},
		"a link":                          {"x.md", "See [the page](https://example.org/" + strings.Repeat("nobody/", 20) + ").", nil},
		"a comment":                       {"x.go", "package x\n\n// F is for nobody.\nfunc F() {}\n", []string{"comment word nobody"}},
		"a comment of a test":             {"x_test.go", "package x\n\n// F is for nobody.\nfunc F() {}\n", []string{"test word nobody"}},
		"code in a comment":               {"x.go", "package x\n\n// F is used so:\n//\n//\tnobody()\nfunc F() {}\n", nil},
		"a wide comment":                  {"x.go", "package x\n\n\t// " + strings.Repeat("x", longestLine-6) + "\n", []string{"comment line // " + strings.Repeat("x", longestLine-6)}},
		"a comment that fits":             {"x.go", "package x\n\n\t// " + strings.Repeat("x", longestLine-7) + "\n", nil},
		"an error":                        {"x.go", "package x\n\nvar err = errors.New(\"nobody \" + \"reads\")\n", []string{"error word nobody"}},
		"a log line":                      {"x.go", "package x\n\nfunc F() { p.log.WarnContext(ctx, \"mended\") }\n", []string{"log word mended"}},
		"a metric":                        {"x.go", "package x\n\nvar c = counter(\"x_total\", \"Entries in hand.\")\n", []string{"metric word in hand"}},
		"a metric's options":              {"x.go", "package x\n\nvar c = Opts{Help: \"Entries in hand.\"}\n", []string{"metric word in hand"}},
		"a flag":                          {"x.go", "package x\n\nfunc F() { flags.StringVarP(&x, \"x\", \"x\", \"\", \"whom the commands query\") }\n", []string{"help word whom", "help start whom the commands query"}},
		"a command":                       {"x.go", "package x\n\nvar c = Command{Short: \"Read anew\", Example: \"  x dead nobody # for ever\"}\n", []string{"help word anew", "help word for ever"}},
		"another string":                  {"x.go", "package x\n\nvar c = f(\"nobody\")\n", nil},
		"a name":                          {"x.go", "package x\n\nfunc inHandTotal(home int) {}\n", []string{"identifier name inHandTotal", "identifier name home"}},
		"a plain name":                    {"x.go", "package x\n\nfunc handler(deadLetters int) {}\n", nil},
		"a name in a test":                {"x_test.go", "package x\n\nfunc inHand() {}\n", nil},
		"a script":                        {"x.lua", "-- Nobody reads.\nlocal x = 1\n", []string{"comment word Nobody"}},
		"a profile":                       {"x.yaml", "# Nobody reads.\ndescription: as it came\n", []string{"help word as it came", "comment word Nobody"}},
		"a dashboard":                     {"x.json", "{\"title\": \"In hand\"}", []string{"help word In hand"}},
		"a target":                        {"Makefile", "x: ## Make it anew\n\ttrue\n", []string{"help word anew"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, rulesOf(t, c.file, c.text))
		})
	}
}
