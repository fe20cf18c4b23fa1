// Package servers has real servers started for tests and the demo: Apache Kafka, Redis, Valkey and
// PostgreSQL, on loopback, with their data in one folder.
//
// Each server is had in the first way that works: an address given in the environment (then it is only
// looked at, never started or stopped), a Docker Compose engine, or packages of the machine. What runs is
// remembered in a state file a server, so that another process can stop, kill or restart exactly that.
package servers
