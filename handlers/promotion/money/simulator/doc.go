// Package simulator is a simulated Money API: the far side of plugins/once/simulator with the types,
// the amounts and the words of the OpenAPI file of package money.
package simulator
