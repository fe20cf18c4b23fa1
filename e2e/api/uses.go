package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

// kind says how convincing a user is: the smallest is shown. Code comes before tests, so that a new test of what the
// product uses does not change the list.
type kind int

const (
	example kind = iota // an Example of any package
	proof               // the module of the scenarios
	code                // another package
	test                // the test of another package
	implied             // an interface, or the declaration of another name
	none
	kinds
)

func (k kind) String() string {
	return [...]string{"example", "e2e", "code", "test", "implied", "none"}[k]
}

type user struct {
	kind kind
	name string
}

// name is an exported name.
type name struct {
	key  string // package.Name or package.Type.Method, without the module's path
	pack string
	obj  types.Object
	user user
}

// list is the API of a module.
type list struct {
	module string // its path with a slash
	top    string // its folder
	names  map[string]*name
	owners map[string]string // the type that a field belongs to, by the field's place
}

// newList finds the exported names of the module whose folder is the first one loaded.
func newList(loaded []*packages.Package) *list {
	l := &list{names: map[string]*name{}, owners: map[string]string{}}
	for _, p := range loaded {
		if m := p.Module; m != nil && m.Main && (l.top == "" || len(m.Dir) < len(l.top)) {
			l.module, l.top = m.Path+"/", m.Dir
		}
	}
	for _, p := range loaded {
		if p.ForTest == "" && l.contains(p) && importable(p) {
			l.addNames(p)
		}
	}
	return l
}

func (l *list) contains(p *packages.Package) bool {
	return p.Module != nil && p.Module.Path+"/" == l.module && !strings.HasSuffix(p.ID, ".test")
}

func importable(p *packages.Package) bool {
	return p.Name != "main" && !strings.Contains("/"+p.PkgPath+"/", "/internal/")
}

func (l *list) short(pkgPath string) string {
	return strings.TrimPrefix(strings.TrimSuffix(pkgPath, "_test"), l.module)
}

func (l *list) addNames(p *packages.Package) {
	pack := l.short(p.PkgPath)
	add := func(key string, obj types.Object) {
		l.names[key] = &name{key: key, pack: pack, obj: obj, user: user{kind: none, name: "-"}}
	}
	for _, id := range p.Types.Scope().Names() {
		obj := p.Types.Scope().Lookup(id)
		if !obj.Exported() {
			continue
		}
		key := pack + "." + id
		add(key, obj)
		declared, ok := obj.(*types.TypeName)
		if !ok || declared.IsAlias() {
			continue
		}
		named := declared.Type().(*types.Named)
		for m := range named.Methods() {
			if m.Exported() {
				add(key+"."+m.Name(), m)
			}
		}
		if s, ok := named.Underlying().(*types.Struct); ok {
			l.addFields(p.Fset, s, key)
		}
	}
}

func (l *list) addFields(files *token.FileSet, s *types.Struct, owner string) {
	for f := range s.Fields() {
		l.owners[files.Position(f.Pos()).String()] = owner
		if inner, ok := f.Type().(*types.Struct); ok {
			l.addFields(files, inner, owner)
		}
	}
}

// keyOf returns the name that an identifier means, if it is one of the list.
func (l *list) keyOf(files *token.FileSet, obj types.Object) string {
	if obj == nil || obj.Pkg() == nil || !strings.HasPrefix(obj.Pkg().Path(), l.module) {
		return ""
	}
	pack := l.short(obj.Pkg().Path())
	switch o := obj.(type) {
	case *types.Func:
		o = o.Origin()
		receiver := o.Signature().Recv()
		if receiver == nil {
			return pack + "." + o.Name()
		}
		of := named(receiver.Type())
		if of == nil {
			return ""
		}
		return pack + "." + of.Obj().Name() + "." + o.Name()
	case *types.Var:
		if o.IsField() {
			return l.owners[files.Position(o.Origin().Pos()).String()]
		}
	}
	if obj.Parent() != obj.Pkg().Scope() {
		return ""
	}
	return pack + "." + obj.Name()
}

func named(t types.Type) *types.Named {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, _ := types.Unalias(t).(*types.Named)
	return n
}

// readUses notes who uses what in the files of a package. A package does not use itself, but its
// Examples do.
func (l *list) readUses(p *packages.Package) {
	ours := l.contains(p)
	if !ours && !strings.HasPrefix(p.PkgPath, l.module) || strings.HasSuffix(p.ID, ".test") {
		return
	}
	own := l.short(p.PkgPath)
	for _, file := range p.Syntax {
		place, err := filepath.Rel(l.top, p.Fset.Position(file.Pos()).Filename)
		if err != nil {
			continue
		}
		place = filepath.ToSlash(place)
		by := user{code, path.Dir(place)}
		switch {
		case !ours:
			by = user{proof, place}
		case strings.HasSuffix(place, "_test.go"):
			by = user{test, place}
		}
		for _, decl := range file.Decls {
			by := by
			if f, ok := decl.(*ast.FuncDecl); ok && by.kind == test && strings.HasPrefix(f.Name.Name, "Example") {
				by = user{example, own + "." + f.Name.Name}
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					l.use(l.keyOf(p.Fset, p.TypesInfo.Uses[id]), own, by)
				}
				return true
			})
		}
	}
}

// use notes a user of a name, and of the type that a method belongs to.
func (l *list) use(key, from string, by user) {
	used, ok := l.names[key]
	if !ok {
		// The method of an interface belongs to its type.
		if at := strings.LastIndex(key, "."); at > strings.LastIndex(key, "/") && strings.Contains(key[strings.LastIndex(key, "/")+1:at], ".") {
			l.use(key[:at], from, by)
		}
		return
	}
	if from == used.pack && by.kind != example {
		return
	}
	if better(by, used.user, used.pack) {
		used.user = by
	}
	if f, ok := used.obj.(*types.Func); ok && f.Signature().Recv() != nil {
		l.use(key[:strings.LastIndex(key, ".")], from, by)
	}
}

// better prefers the kind, then the package's own Example, then the first of the alphabet.
func better(a, b user, pack string) bool {
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	if ownA, ownB := strings.HasPrefix(a.name, pack+"."), strings.HasPrefix(b.name, pack+"."); ownA != ownB {
		return ownA
	}
	return a.name < b.name
}
