package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// All who enter a container are one user, so only a person can say who acts.
func TestAPersonIsWhoCalledSudoAndNoUserWithoutALogin(t *testing.T) {
	t.Parallel()
	const accounts = "root:x:0:0:root:/root:/bin/bash\nmillrace:x:65532:65532:millrace:/tmp:/sbin/nologin\nbackup:x:34:34::/:/bin/false\nann:x:1000:1000::/home/ann:/bin/sh\n"
	for name, c := range map[string]struct{ user, id, sudoer, want string }{
		"a person":               {"ann", "1000", "", "ann"},
		"who called sudo":        {"root", "0", "ann", "ann"},
		"a user that sudo took":  {"ann", "1000", "bob", "ann"},
		"root":                   {"root", "0", "", "root"},
		"the user of the image":  {"millrace", "65532", "", ""},
		"a user without a shell": {"backup", "34", "", ""},
		"a user of a directory":  {"eve", "70000", "", "eve"},
		"an unknown user":        {"", "70001", "", ""},
		"the image, run as root": {"nobody", "0", "", "nobody"},
	} {
		require.Equal(t, c.want, personOf(c.user, c.id, c.sudoer, accounts), name)
	}
	require.Empty(t, personOf("root", "0", "", "root:x:0:0:root:/:/sbin/nologin\n"), "root of the image")

	by := By{Who: personOf("millrace", "65532", "", accounts), Why: "ticket 7"}
	err := by.Check()
	require.ErrorContains(t, err, "--who NAME required, for the audit")
	require.Equal(t, ExitUsage, exitCode(t.Context(), err))
}
