package mskiam

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"
)

// signature is that of AWS Signature Version 4 for a presigned GET request, as its documentation says.
func signature(t *testing.T, text, secret, payloadHash string) string {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	query := u.Query()
	query.Del("X-Amz-Signature")
	query.Del("User-Agent") // it is added to the signed address
	scope := strings.SplitN(query.Get("X-Amz-Credential"), "/", 2)[1]
	sum := func(text string) string {
		b := sha256.Sum256([]byte(text))
		return hex.EncodeToString(b[:])
	}
	request := strings.Join([]string{"GET", u.EscapedPath(), strings.ReplaceAll(query.Encode(), "+", "%20"), "host:" + u.Host + "\n", "host", payloadHash}, "\n")
	key := []byte("AWS4" + secret)
	sign := func(text string) []byte {
		h := hmac.New(sha256.New, key)
		_, _ = h.Write([]byte(text)) // a hash takes everything
		return h.Sum(nil)
	}
	for _, part := range strings.Split(scope, "/") {
		key = sign(part)
	}
	return hex.EncodeToString(sign(strings.Join([]string{"AWS4-HMAC-SHA256", query.Get("X-Amz-Date"), scope, sum(request)}, "\n")))
}

// The test computes the signature that the documentation of AWS has for its example
// ("Authenticating Requests: Using Query Parameters", Amazon S3 API Reference).
func TestTheSignatureIsThatOfTheDocumentation(t *testing.T) {
	t.Parallel()
	const example = "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256" +
		"&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z" +
		"&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=recorded"
	require.Equal(t, "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
		signature(t, example, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "UNSIGNED-PAYLOAD"))
}

func given(c aws.Credentials) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return c, nil })
}

// A token is what a broker of MSK expects: the action, the service and region in the scope, the session, and the
// signature of all that.
func TestATokenIsSigned(t *testing.T) {
	t.Parallel()
	const nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // SHA-256 of an empty body
	for region, session := range map[string]string{"eu-west-1": "", "ap-northeast-2": "session token/+="} {
		token, err := Token(region, given(aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret of the test", SessionToken: session}))(t.Context())
		require.NoError(t, err)
		text, err := base64.RawURLEncoding.DecodeString(token)
		require.NoError(t, err)
		u, err := url.Parse(string(text))
		require.NoError(t, err)
		query := u.Query()
		require.Equal(t, "https://kafka."+region+".amazonaws.com/", u.Scheme+"://"+u.Host+u.Path)
		require.Equal(t, []string{"kafka-cluster:Connect", "900", "host", session}, []string{query.Get("Action"), query.Get("X-Amz-Expires"), query.Get("X-Amz-SignedHeaders"), query.Get("X-Amz-Security-Token")})
		require.Equal(t, "AKIDEXAMPLE/"+query.Get("X-Amz-Date")[:8]+"/"+region+"/kafka-cluster/aws4_request", query.Get("X-Amz-Credential"))
		require.Equal(t, signature(t, string(text), "secret of the test", nothing), query.Get("X-Amz-Signature"))
		require.NotEqual(t, signature(t, string(text), "another secret", nothing), query.Get("X-Amz-Signature"))
	}
}

// A token is kept until five minutes before its end. One that can't be replaced is used until its end.
func TestATokenIsKeptAndReplaced(t *testing.T) {
	t.Parallel()
	now, signed := time.Unix(1_000_000, 0), 0
	var broken error
	s := &source{now: func() time.Time { return now }, turn: make(chan struct{}, 1), sign: func(context.Context) (string, int64, error) {
		signed++
		return fmt.Sprint("token ", signed), now.Add(15 * time.Minute).UnixMilli(), broken
	}}
	after := func(d time.Duration) string {
		now = now.Add(d)
		token, err := s.token(t.Context())
		if err != nil {
			return err.Error()
		}
		return token
	}
	require.Equal(t, "token 1", after(0))
	require.Equal(t, "token 1", after(10*time.Minute-time.Second))
	require.Equal(t, "token 2", after(2*time.Second))
	broken = errors.New("no metadata of the machine")
	require.Equal(t, "token 2", after(14*time.Minute))
	require.Equal(t, "mskiam: sign a token: no metadata of the machine", after(2*time.Minute))
	broken = nil
	require.Equal(t, "token 5", after(0))

	s.turn <- struct{}{} // another login waits for AWS
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.token(ctx)
	require.ErrorContains(t, err, "another login waits for the credentials of AWS")
}
