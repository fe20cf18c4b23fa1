package wire_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/wire"
)

func TestTheTopologyFits100Columns(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	require.Zero(t, app.Main(t.Context(), app.Options{
		Name: "millrace", Plugins: wire.New().Plugins(), Environments: wire.Environments(), Profiles: wire.Profiles(), DefaultProfile: "embedded",
		Args: []string{"topology"}, Environ: []string{}, Stdout: &out, Stderr: &errs,
	}), errs.String())
	require.Contains(t, out.String(), "campaign-promotion-group:VOUCHER:<id>\n")
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(line)-1, 100, line)
	}
}
