package configs

import (
	"errors"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
)

// Options say where settings come from. The zero value is the code's defaults alone.
type Options struct {
	// Profiles holds the profiles, NAME.yaml each. Nil: there are none.
	Profiles fs.FS
	// Profile is the name of a profile. It overrides PREFIX__PROFILE, which overrides `profile:` in
	// File.
	Profile string
	// DefaultProfile is taken when neither a profile is named anywhere nor a File is given.
	DefaultProfile string
	// File is a settings file, laid over the profile. Empty: none.
	File string
	// EnvPrefix is the prefix of the environment variables with settings: MILLRACE for
	// MILLRACE__LOG__LEVEL. Empty: the environment is not read.
	EnvPrefix string
	// Environ is the environment as os.Environ returns it. Only variables with the prefix are read, and
	// CREDENTIALS_DIRECTORY, with which the path of a file may begin.
	Environ []string
	// Overrides are settings of the program itself, dotted path to value; they win over everything.
	Overrides map[string]any
}

// Document is the merged settings of all layers. Decode reads its sections. Unclaimed then reports
// the sections that were not read. It is not safe for concurrent use.
type Document struct {
	root    *node
	profile string
	layers  []string
	claimed map[string]bool
	// credentials is the folder of systemd's credentials; empty: there is none.
	credentials string
}

const (
	profileKey = "profile" // read by the loader itself
	pluginsKey = "plugins" // holds the plugins' sections
	enabledKey = "enabled" // of a plugin's section, true unless written; see Enabled
)

// isPlugin reports whether path is that of a plugin's section.
func isPlugin(path string) bool {
	name, ok := strings.CutPrefix(path, pluginsKey+".")
	return ok && !strings.Contains(name, ".")
}

// Load reads and merges all layers. Its error holds every mistake found in them, as *Error.
func Load(o Options) (*Document, error) {
	var errs []*Error
	file := newSection(place{})
	if o.File != "" {
		var fileErrs []*Error
		file, fileErrs = readFile(o.File)
		errs = append(errs, fileErrs...)
	}
	environ, envErrs := fromEnviron(o.EnvPrefix, o.Environ)
	overrides, overErrs := fromOverrides(o.Overrides)
	errs = append(append(errs, envErrs...), overErrs...)

	name, at, profileErrs := chooseProfile(o, file, environ)
	errs = append(errs, profileErrs...)
	d := &Document{root: newSection(place{}), profile: name, claimed: map[string]bool{}, credentials: credentialsIn(o.Environ)}
	if name != "" {
		profile, profileErrs := readProfile(o.Profiles, name, at)
		errs = append(errs, profileErrs...)
		d.root = merge(d.root, profile)
		d.layers = append(d.layers, profileFile(name))
	}
	for _, layer := range []*node{file, environ, overrides} {
		if layer == environ {
			errs = append(errs, environ.takeCase("", d.root)...)
		}
		if len(layer.fields) > 0 {
			d.root = merge(d.root, layer)
			d.layers = append(d.layers, layer.at.file)
		}
	}
	if len(errs) > 0 {
		return nil, join(errs)
	}
	return d, nil
}

func readFile(name string) (*node, []*Error) {
	data, err := os.ReadFile(name)
	if err != nil {
		problem := err
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			problem = pathErr.Err
		}
		return newSection(place{file: name}), []*Error{{File: name, Problem: "can't be read: " + problem.Error()}}
	}
	root, errs := parse(name, data)
	root.at.file = name
	return root, errs
}

// chooseProfile returns the name of the profile and where it was named.
func chooseProfile(o Options, file, environ *node) (string, place, []*Error) {
	name, at := o.DefaultProfile, place{}
	if o.File != "" {
		name = ""
	}
	var errs []*Error
	for _, layer := range []*node{file, environ} {
		n := layer.fields[profileKey]
		switch {
		case n == nil || n.kind == kindEmpty:
		case n.kind != kindScalar || n.scalar.Value == "":
			errs = append(errs, &Error{n.at.file, n.at.line, profileKey, "expected a profile's name, got " + n.describe(), nil})
		default:
			name, at = n.scalar.Value, n.at
		}
	}
	if o.Profile != "" {
		name, at = o.Profile, place{}
	}
	return name, at, errs
}

// Enabled returns the key `enabled` of the plugin section at a dotted path. settings is the
// plugin's configuration struct, which may have a method EnabledByDefault. Decode skips that key.
func (d *Document) Enabled(path string, settings any) (bool, error) {
	at := joinPath(path, enabledKey)
	n, found := d.root.find(at)
	on := enabledByDefault(settings)
	if found {
		w := &walker{}
		w.value(n, at, reflect.ValueOf(&on).Elem())
		if len(w.errs) > 0 {
			return true, join(w.errs)
		}
	}
	return on, nil
}

// enabledByDefault is the default of the key `enabled` of a plugin with these settings: true,
// unless settings has a method EnabledByDefault that returns false.
func enabledByDefault(settings any) bool {
	s, has := settings.(interface{ EnabledByDefault() bool })
	return !has || s.EnabledByDefault()
}

// Profile returns the name of the profile in use, or "".
func (d *Document) Profile() string { return d.profile }

// Layers names the layers that set a value. Each overrides those before it.
func (d *Document) Layers() []string { return slices.Clone(d.layers) }

// Position returns the place of the setting at a dotted path. It is the file (or "environment
// variable NAME", "profile NAME", "override") and the line, 0 outside files. A setting that no
// layer has is at the nearest section above it that was written as one. Without one, as if only
// variables name others of its settings, the place is "" and 0.
func (d *Document) Position(path string) (file string, line int) {
	n, found := d.root.find(path)
	for !found && n.implied {
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			n = d.root
			break
		}
		path = path[:i]
		n, _ = d.root.find(path)
	}
	return n.at.file, n.at.line
}

// Problem returns an Error about the setting at a dotted path, with its position.
func (d *Document) Problem(path, problem string) *Error {
	file, line := d.Position(path)
	return &Error{File: file, Line: line, Path: path, Problem: problem}
}

// Unclaimed returns an error that names every plugin section that no Decode has read: a misspelt
// plugin, or one that this binary does not have. Sections of a built-in profile are left out,
// because another binary may have other plugins and the same profiles.
func (d *Document) Unclaimed() error {
	plugins := d.root.fields[pluginsKey]
	if plugins == nil || plugins.kind == kindEmpty {
		return nil
	}
	if plugins.kind != kindSection {
		return d.Problem(pluginsKey, "expected a section, got "+plugins.describe())
	}
	var known []string
	for path := range d.claimed {
		if name, ok := strings.CutPrefix(path, pluginsKey+"."); ok {
			known = append(known, name)
		}
	}
	var errs []*Error
	for _, name := range plugins.order {
		path := pluginsKey + "." + name
		builtIn := d.profile != "" && plugins.fields[name].at.file == profileFile(d.profile)
		if !d.claimed[path] && !builtIn {
			errs = append(errs, d.Problem(path, "no plugin of this binary has this name"+didYouMean(name, known)))
		}
	}
	return join(errs)
}
