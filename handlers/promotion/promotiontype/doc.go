// Package promotiontype says what a promotion type is: POINT and VOUCHER.
//
// A type is one value of Type, in a file of its own (point.go, voucher.go). It owns its name, and
// with it its topics, groups and keys. It decodes and validates records, makes the request of the
// Money API, and compares two requests. It also owns its value, as text, and its JSON Schema.
//
// Another type is another file and one line in the list of types (list.go). Each other package
// ranges over All or looks a type up with ByName.
package promotiontype
