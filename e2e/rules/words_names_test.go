package rules_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
	"unicode"
)

func splitBlanks(text string) []string { return strings.Fields(text) }

// camels splits a name of Go into its words, in lower case: inHandHTTP is in, hand, http.
func camels(name string) []string {
	var words []string
	runes := []rune(name)
	from := 0
	for i := 1; i <= len(runes); i++ {
		ends := i == len(runes) || runes[i] == '_'
		if !ends {
			up, before := unicode.IsUpper(runes[i]), unicode.IsUpper(runes[i-1])
			ends = up && !before || up && before && i+1 < len(runes) && unicode.IsLower(runes[i+1])
		}
		if ends {
			if word := strings.Trim(strings.ToLower(string(runes[from:i])), "_"); word != "" {
				words = append(words, word)
			}
			from = i
		}
	}
	return words
}

// privateIn returns the private word in a name and the field's term, or "". The table has single
// words and pairs such as inHand. deadLetter is fine.
func privateIn(name string, table map[string]string) (word, use string) {
	words := camels(name)
	for i, w := range words {
		if i > 0 {
			pair := words[i-1] + strings.ToUpper(w[:1]) + w[1:]
			if use, bad := table[pair]; bad {
				return pair, use
			}
		}
		if i > 0 && words[i-1] == "dead" && strings.HasPrefix(w, "letter") {
			continue
		}
		if use, bad := table[w]; bad {
			return w, use
		}
	}
	return "", ""
}

// checkNames returns the findings of the names that a file of the product declares.
func checkNames(file string, tree *ast.File, fset *token.FileSet, table map[string]string) []finding {
	var list []finding
	check := func(id *ast.Ident) {
		if id == nil {
			return
		}
		if word, use := privateIn(id.Name, table); word != "" {
			list = append(list, finding{
				class: classIdentifier, file: file, line: fset.Position(id.Pos()).Line, rule: ruleName,
				words: id.Name, use: fmt.Sprintf("%s: write: %s", word, use),
			})
		}
	}
	defined := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if id, ok := e.(*ast.Ident); ok {
				check(id)
			}
		}
	}
	check(tree.Name)
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			check(n.Name)
		case *ast.TypeSpec:
			check(n.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				check(id)
			}
		case *ast.Field:
			for _, id := range n.Names {
				check(id)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				defined(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				defined(n.Key, n.Value)
			}
		}
		return true
	})
	return list
}
