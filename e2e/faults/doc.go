// Package faults has the parts of the fault suite that need no server:
//
//   - Matrix: all faults
//   - Plan: the order and the numbers of the faults for a seed
//   - Proxy: delays and cuts connections
//   - Table and Totals: the results for the READMEs
//
// The tests of package e2e inject the faults.
package faults
