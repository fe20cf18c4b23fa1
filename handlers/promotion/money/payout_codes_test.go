package money

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

func TestPayoutCodesAreThoseOfOpenAPI(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	require.NoError(t, err)
	for _, path := range []string{"/v1/points/charges", "/v1/vouchers/charges"} {
		listed := map[int][]string{}
		for status, response := range doc.Paths.Value(path).Post.Responses.Map() {
			if codes, ok := response.Value.Extensions["x-payout-codes"].([]any); ok {
				n, err := strconv.Atoi(status)
				require.NoError(t, err)
				for _, code := range codes {
					require.Regexp(t, ownCode, code)
					listed[n] = append(listed[n], code.(string))
				}
			}
		}
		require.Equal(t, payoutCodes(), listed, path)
	}
	m := mapping()
	require.NoError(t, m.Validate())
	pattern := doc.Components.Schemas["Error"].Value.Properties["code"].Value
	require.Equal(t, "^[a-z][a-z0-9_]*$", pattern.Pattern)
	require.EqualValues(t, 64, *pattern.MaxLength)
	require.NotContains(t, payoutCodes()[http.StatusNotFound], codeNotFound, "a charge that is not there is no payout that is refused")
}
