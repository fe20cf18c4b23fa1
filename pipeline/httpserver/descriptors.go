package httpserver

const (
	reserved   = 512 // descriptors for everything but the connections of the public server
	operations = 128 // connections of the operations server
)

// Public returns how many connections the public server of a process may have when the process may
// open a number of descriptors. The reserve, at most half of them, is for the operations server,
// connections to other servers and files.
func Public(descriptors int) int { return descriptors - min(reserved, descriptors/2) }

// Operations returns how many connections the operations server may have. They are part of the
// reserve of Public, so that a flood of the public server leaves it reachable.
func Operations() int {
	if descriptors, limited := Descriptors(); limited {
		return max(1, min(operations, descriptors/8))
	}
	return operations
}
