package app

import (
	"os"
	"os/user"
)

// Person returns the user of this process as name@host, for records of operators' actions. It is
// empty when the user is unknown.
func Person() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil && name != "" {
		name += "@" + host
	}
	return name
}
