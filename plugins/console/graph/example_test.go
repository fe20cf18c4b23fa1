package graph_test

import (
	"fmt"
	"regexp"

	"github.com/millrace-io/millrace/plugins/console/graph"
)

// What a screen reader reads of a drawing.
func ExampleGraph_SVG() {
	svg, err := graph.Graph{
		Boxes: []graph.Box{
			{ID: "orders", Kind: graph.Place, Type: "kafka", Title: "orders", State: graph.OK},
			{ID: "bill", Kind: graph.Step, Type: "route", Title: "bill", State: graph.Fail, Why: "The bank does not answer."},
		},
		Edges: []graph.Edge{{From: "orders", To: "bill", Label: "billing"}},
	}.SVG()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, title := range regexp.MustCompile("<title>(.*?)</title>").FindAllStringSubmatch(string(svg), -1) {
		fmt.Println(title[1])
	}
	// Output:
	// from orders to bill: billing
	// kafka orders, ok
	// route bill, fail: The bank does not answer.
}
