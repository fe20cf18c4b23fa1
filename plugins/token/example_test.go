package token_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/token"
)

// Example signs a token for one job and verifies it.
func Example() {
	tokens := token.New() // in a service: with plugins.token.keys
	if _, err := pipeline.NewRegistry(pipeline.Env{}, tokens); err != nil {
		fmt.Println(err)
		return
	}
	raw, err := tokens.Sign(token.Claims{
		Audience: "millrace-jobs", Job: []string{"scan/J1"}, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	claims, err := tokens.Verify("millrace-jobs", raw)
	fmt.Println(claims.Job, err)
	_, err = tokens.Verify("millrace-room:42", raw)
	fmt.Println(errors.Is(err, token.ErrAudience))
	_, err = tokens.Verify("millrace-jobs", raw+"x")
	fmt.Println(errors.Is(err, token.ErrForged))
	// Output:
	// [scan/J1] <nil>
	// true
	// true
}
