package mskiam_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/kafka/mskiam"
)

// Example gives the clients of Kafka a token that is signed with credentials of AWS.
func Example() {
	credentials := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret"}, nil
	})
	p := kafka.New()
	p.Settings().(*kafka.Config).SASL = kafka.SASL{
		Mechanism: "OAUTHBEARER",
		Token:     setting.NewProvidedSecret("", mskiam.Token("eu-west-1", credentials)),
	}

	// What a login sends:
	token := p.Settings().(*kafka.Config).SASL.Token.Live("the token of MSK", nil, nil).Value(context.Background())
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		fmt.Println(err)
		return
	}
	address, err := url.Parse(string(text))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(address.Host, address.Query().Get("Action"))
	// Output: kafka.eu-west-1.amazonaws.com kafka-cluster:Connect
}
