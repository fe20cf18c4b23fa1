package once_test

import (
	"fmt"

	"github.com/millrace-io/millrace/plugins/once"
)

// Two keys never have the same text, also when their parts contain the separator.
func ExampleKey() {
	one := once.Key{Group: "a:b", ID: "c"}
	other := once.Key{Group: "a", ID: "b:c"}
	fmt.Println(one, other)

	again, err := once.ParseKey("a%3Ab:c")
	fmt.Println(again == one, err)
	// Output:
	// a%3Ab:c a:b%3Ac
	// true <nil>
}
