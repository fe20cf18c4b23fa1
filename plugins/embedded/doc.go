// Package embedded runs Kafka (franz-go's kfake) and Redis (miniredis) inside the process, on
// loopback ports. A laptop runs the complete path with nothing installed but Go. Behaviour that
// only a real broker has (replication, failover, eviction) is not tested by it.
package embedded
