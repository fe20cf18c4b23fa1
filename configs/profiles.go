package configs

import (
	"embed"
	"slices"
	"strings"
)

//go:embed profiles/*.yaml
var profiles embed.FS

// Profiles returns the names of the built-in profiles, from a laptop to production.
func Profiles() []string {
	return []string{"embedded", "local", "dev", "staging", "production"}
}

// profileFile is what a built-in profile is called where a file's name is expected.
func profileFile(name string) string { return "profile " + name }

func readProfile(name string, named place) (*node, []*Error) {
	if !slices.Contains(Profiles(), name) {
		hint := didYouMean(name, Profiles())
		if hint == "" {
			hint = "; there are " + strings.Join(Profiles(), ", ")
		}
		return newSection(named), []*Error{{named.file, named.line, profileKey, "no profile has the name " + quoteShort(name) + hint}}
	}
	at := profileFile(name)
	data, err := profiles.ReadFile("profiles/" + name + ".yaml")
	if err != nil {
		return newSection(place{file: at}), []*Error{{File: at, Problem: err.Error()}}
	}
	root, errs := parse(at, data)
	root.at.file = at
	return root, errs
}
