package configs

import (
	"io/fs"
	"slices"
	"strings"
)

// profileSuffix ends the names of profiles' files.
const profileSuffix = ".yaml"

// Profiles returns the names of the profiles in files, sorted. Nil has none.
func Profiles(files fs.FS) []string {
	names := []string{}
	if files == nil {
		return names
	}
	// It fails only for a malformed pattern.
	found, _ := fs.Glob(files, "*"+profileSuffix)
	for _, file := range found {
		names = append(names, strings.TrimSuffix(file, profileSuffix))
	}
	return names
}

// profileFile is what a built-in profile is called where a file's name is expected.
func profileFile(name string) string { return "profile " + name }

func readProfile(files fs.FS, name string, named place) (*node, []*Error) {
	known := Profiles(files)
	if !slices.Contains(known, name) {
		suggestion := didYouMean(name, known)
		switch {
		case len(known) == 0:
			suggestion = "; there are none"
		case suggestion == "":
			suggestion = "; there are " + strings.Join(known, ", ")
		}
		return newSection(named), []*Error{{named.file, named.line, profileKey, "no profile has the name " + quoteShort(name) + suggestion}}
	}
	at := profileFile(name)
	data, err := fs.ReadFile(files, name+profileSuffix)
	if err != nil {
		return newSection(place{file: at}), []*Error{{File: at, Problem: err.Error()}}
	}
	root, errs := parse(at, data)
	root.at.file = at
	return root, errs
}
