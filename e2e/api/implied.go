package main

import (
	"go/ast"
	"go/types"
	"maps"
	"slices"

	"golang.org/x/tools/go/packages"
)

// contract is an interface and how the list calls it.
type contract struct {
	name string
	is   *types.Interface
}

// addImplementations marks the methods without another user that their type needs for an interface, and
// the interfaces that a type of another package implements: a library asks for these at run time.
func (l *list) addImplementations(loaded []*packages.Package) {
	byMethod := map[string][]contract{}
	seen := map[types.Type]bool{}
	add := func(title string, t types.Type) {
		is, ok := t.Underlying().(*types.Interface)
		if !ok || seen[t] {
			return
		}
		seen[t] = true
		for m := range is.Methods() {
			byMethod[m.Name()] = append(byMethod[m.Name()], contract{title, is})
		}
	}
	scope := func(p *types.Package) {
		for _, id := range p.Scope().Names() {
			if declared, ok := p.Scope().Lookup(id).(*types.TypeName); ok && declared.Exported() {
				add(l.short(p.Path())+"."+id, declared.Type())
			}
		}
	}
	add("error", types.Universe.Lookup("error").Type())
	for _, p := range loaded {
		if p.ForTest != "" {
			continue
		}
		scope(p.Types)
		for _, imported := range p.Types.Imports() {
			scope(imported)
		}
		for _, file := range p.Syntax {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if _, ok := n.Type.(*ast.InterfaceType); ok {
						add(l.short(p.PkgPath)+"."+n.Name.Name, p.TypesInfo.TypeOf(n.Name))
						return false
					}
				case *ast.InterfaceType:
					add(l.short(p.PkgPath)+" interface", p.TypesInfo.TypeOf(n))
				}
				return true
			})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(l.names)) {
		n := l.names[key]
		if n.user.kind != none {
			continue
		}
		title := ""
		switch obj := n.obj.(type) {
		case *types.Func:
			if obj.Signature().Recv() != nil {
				title = implements(obj, byMethod[obj.Name()])
			}
		case *types.TypeName:
			title = l.implementer(n)
		}
		if title != "" {
			n.user = user{implied, title}
		}
	}
}

// implementer returns a type of another package that has the methods of an interface.
func (l *list) implementer(n *name) string {
	is, ok := n.obj.Type().Underlying().(*types.Interface)
	if !ok || is.NumMethods() == 0 {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(l.names)) {
		other := l.names[key]
		declared, ok := other.obj.(*types.TypeName)
		if ok && other.pack != n.pack && !types.IsInterface(declared.Type()) && types.Implements(types.NewPointer(declared.Type()), is) {
			return key
		}
	}
	return ""
}

// implements returns the interface that a method belongs to, the first of the alphabet.
func implements(method *types.Func, contracts []contract) string {
	switch method.Name() {
	case "As", "Is", "Unwrap": // the package errors has no names for these
		return "package errors"
	}
	of := named(method.Signature().Recv().Type())
	if of == nil || of.TypeParams().Len() > 0 {
		return ""
	}
	var titles []string
	for _, c := range contracts {
		if types.Implements(types.NewPointer(of), c.is) {
			titles = append(titles, c.name)
		}
	}
	if len(titles) == 0 {
		return ""
	}
	return slices.Min(titles)
}

// addImplied marks the types without another user that a used name's declaration mentions, and the values
// of used types.
func (l *list) addImplied() {
	for changed := true; changed; {
		changed = false
		for _, key := range slices.Sorted(maps.Keys(l.names)) {
			by := l.names[key]
			if constant, ok := by.obj.(*types.Const); ok && by.user.kind == none {
				changed = l.addValue(by, constant) || changed
			}
			if by.user.kind == none {
				continue
			}
			mentioned(by.obj, func(t *types.TypeName) {
				if t.Pkg() == nil {
					return
				}
				n, ok := l.names[l.short(t.Pkg().Path())+"."+t.Name()]
				if ok && n.user.kind == none {
					n.user = user{implied, key}
					changed = true
				}
			})
		}
	}
}

// addValue marks a constant whose type has a user, because the values of a type belong together.
func (l *list) addValue(n *name, constant *types.Const) bool {
	of := named(constant.Type())
	if of == nil || of.Obj().Pkg() == nil {
		return false
	}
	key := l.short(of.Obj().Pkg().Path()) + "." + of.Obj().Name()
	if t, ok := l.names[key]; !ok || t.user.kind == none {
		return false
	}
	n.user = user{implied, key}
	return true
}

// mentioned calls f for each named type in the declaration of obj that a user of obj can reach.
func mentioned(obj types.Object, f func(*types.TypeName)) {
	var visit func(t types.Type)
	inside := func(t types.Type) {
		switch t := t.(type) {
		case *types.Pointer:
			visit(t.Elem())
		case *types.Slice:
			visit(t.Elem())
		case *types.Array:
			visit(t.Elem())
		case *types.Chan:
			visit(t.Elem())
		case *types.Map:
			visit(t.Key())
			visit(t.Elem())
		case *types.Signature:
			for v := range t.Params().Variables() {
				visit(v.Type())
			}
			for v := range t.Results().Variables() {
				visit(v.Type())
			}
		case *types.Struct:
			for v := range t.Fields() {
				if v.Exported() {
					visit(v.Type())
				}
			}
		case *types.Interface:
			for m := range t.Methods() {
				if m.Exported() {
					visit(m.Signature())
				}
			}
		}
	}
	visit = func(t types.Type) {
		if n, ok := types.Unalias(t).(*types.Named); ok {
			f(n.Obj())
			for a := range n.TypeArgs().Types() {
				visit(a)
			}
			return
		}
		inside(types.Unalias(t))
	}
	if declared, ok := obj.(*types.TypeName); ok {
		inside(declared.Type().Underlying())
		return
	}
	visit(obj.Type())
}
