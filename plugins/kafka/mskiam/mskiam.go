// Package mskiam signs tokens with which a client of Amazon MSK logs in by IAM. The tokens are those of
// OAUTHBEARER, and the library of AWS makes them:
//
//	p := kafka.New()
//	p.Settings().(*kafka.Config).SASL = kafka.SASL{
//		Mechanism: "OAUTHBEARER",
//		Token:     setting.NewProvidedSecret("", mskiam.Token("eu-west-1", nil)),
//	}
//
// It is a module of its own, so that a program that does not use it has no dependency of AWS.
package mskiam

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-msk-iam-sasl-signer-go/signer"
	"github.com/aws/aws-sdk-go-v2/aws"
)

// renewBefore is how long before its end a token is replaced. The broker checks the time of a token at each login, and
// a login may take a while.
const renewBefore = 5 * time.Minute

// Token returns a function for setting.NewProvidedSecret. It signs a token for the clusters of a region, such as
// eu-west-1, and keeps it until five minutes before its end, which comes after 15 minutes. A token that can't be replaced
// is used until its end. credentials is asked for each token; nil: the default chain of AWS, which looks
// into the environment, the shared files and the metadata of the machine. The function is safe for concurrent use.
func Token(region string, credentials aws.CredentialsProvider) func(context.Context) (string, error) {
	sign := func(ctx context.Context) (string, int64, error) { return signer.GenerateAuthToken(ctx, region) }
	if credentials != nil {
		sign = func(ctx context.Context) (string, int64, error) {
			return signer.GenerateAuthTokenFromCredentialsProvider(ctx, region, credentials)
		}
	}
	return (&source{sign: sign, now: time.Now, turn: make(chan struct{}, 1)}).token
}

// source has the last token.
type source struct {
	sign func(context.Context) (token string, endMilliseconds int64, err error)
	now  func() time.Time

	turn  chan struct{} // capacity 1: held by the caller that reads or writes the rest
	value string
	end   time.Time
}

func (s *source) token(ctx context.Context) (string, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", fmt.Errorf("mskiam: another login waits for the credentials of AWS: %w", context.Cause(ctx))
	}
	now := s.now()
	if now.Before(s.end.Add(-renewBefore)) {
		return s.value, nil
	}
	value, end, err := s.sign(ctx)
	switch {
	case err == nil:
		s.value, s.end = value, time.UnixMilli(end)
	case now.Before(s.end): // the broker takes the last one still
	default:
		return "", fmt.Errorf("mskiam: sign a token: %w", err)
	}
	return s.value, nil
}
