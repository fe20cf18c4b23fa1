package app_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
)

func TestPersonNamesUserAndHost(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Regexp(t, "^[^@]+@"+host+"$", app.Person())
}
