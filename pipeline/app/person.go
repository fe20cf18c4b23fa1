package app

import (
	"os"
	"os/user"
)

// Person names who runs this process, as name@host, for records of who did what. It is empty when
// nobody knows.
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
