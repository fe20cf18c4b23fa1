// Package embedded is the home that needs no servers: Kafka from franz-go's kfake and Redis from miniredis,
// inside the process, on loopback ports of their own. It lets a laptop run the whole path with nothing
// installed but Go; it proves nothing that a real broker could break.
package embedded
