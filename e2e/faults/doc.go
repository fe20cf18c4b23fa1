// Package faults is what the fault suite knows without any server: which faults there are (Matrix), in which order
// and with which numbers a seed tries them (Plan), a proxy that spoils connections (Proxy), and the table of
// results that it writes into the README (Table). What happens then is in the tests of package e2e.
package faults
