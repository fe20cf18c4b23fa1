// Package console has what the pages of the console are made of. A plugin contributes a page without any
// HTML: it offers a Contributor in Register, and plugins/console shows the page, checks who asks for it,
// and answers the same numbers as JSON below /api/v1/ (Example of plugins/console is a complete program).
//
//	func (o *orders) Console() []console.Page {
//		return []console.Page{{Path: "orders", Title: "Orders", Panels: []console.Panel{
//			{Name: "open", Title: "Open orders", Load: o.loadOpen},
//		}}}
//	}
//
// Each panel is loaded by itself and within a limit, so that a server which does not answer takes away its
// own numbers and no others. A number that is not known is nil, and is never shown as 0.
package console
