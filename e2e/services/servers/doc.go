// Package servers starts real servers for tests and the demo: Apache Kafka, Redis, Valkey and
// PostgreSQL, on loopback, with their data in one folder. It also installs the browser of tests.
//
// A server comes from the first of these that works: an address in the environment, Docker Compose,
// or packages of the machine. A server from the environment is never started or stopped. A state
// file per server lets another process stop, kill or restart it.
package servers
