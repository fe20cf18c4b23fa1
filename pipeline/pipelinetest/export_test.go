package pipelinetest

import (
	"errors"
	"testing"
)

// CheckTransport runs the case of Transport with this name, for tests of transports that break it.
func CheckTransport(t testing.TB, tt TransportTest, name string) error {
	t.Helper()
	for _, c := range transportCases() {
		if c.name == name {
			return tt.check(t, c)
		}
	}
	t.Fatalf("there is no case %q", name)
	return nil
}

// IsNotChecked reports whether a case did not concern the transport, so that Transport logs it.
func IsNotChecked(err error) bool {
	_, is := errors.AsType[notCheckedError](err)
	return is
}

// Validate reports the fields of a TransportTest that are missing.
func (tt TransportTest) Validate() error { return tt.validate() }

// TransportCases returns the names of the cases of Transport.
func TransportCases() (names []string) {
	for _, c := range transportCases() {
		names = append(names, c.name)
	}
	return names
}
