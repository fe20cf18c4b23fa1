package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// project is a module with a name of each kind, and one that nobody uses.
var project = map[string]string{
	"go.mod": "module example.org/p\n\ngo 1.26\n",
	"shop/shop.go": `package shop

import "errors"

type Cart struct{ Items []Item }
type Item struct{}
type Size int

const (
	Small Size = iota
	Large
)

var ErrSoldOut = errors.New("sold out")

type Payer interface{ Pay() error }

func New() *Cart                { return &Cart{} }
func (c *Cart) Add(i Item)      { c.Items = append(c.Items, i) }
func (c *Cart) String() string  { return "cart" }
func (c *Cart) Weight() float64 { return helper() }
func Total(s Size) int          { return int(s) }
func helper() float64           { return Unused() }
func Unused() float64           { return 1 }
`,
	"shop/own_test.go": `package shop_test

import (
	"testing"

	"example.org/p/shop"
)

func TestOwn(*testing.T) { shop.New().Weight() }
func ExampleNew()        { shop.New() }
`,
	"till/till.go": `package till

import "example.org/p/shop"

type Cash struct{}

func (Cash) Pay() error { return shop.ErrSoldOut }
func Sum() int          { return shop.Total(shop.Small) }
`,
	"till/till_test.go": `package till

import (
	"testing"

	"example.org/p/shop"
)

func TestSum(*testing.T) { shop.New().Add(shop.Item{}); _ = shop.Total(1) }
`,
	"internal/hidden/hidden.go": "package hidden\n\nfunc Hidden() {}\n",
	"cmd/p/main.go":             "package main\n\nfunc Main() {}\nfunc main() {}\n",
}

func TestTheListNamesOneUserOfEachName(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles a module")
	}
	dir := t.TempDir()
	for name, text := range project {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	var out strings.Builder
	require.NoError(t, run(t.Context(), dir, []string{"./..."}, &out))
	sums, names, found := strings.Cut(out.String(), "\n\n")
	require.True(t, found)
	require.Equal(t, strings.TrimSpace(`
shop.Cart till/till_test.go
shop.Cart.Add till/till_test.go
shop.Cart.String fmt.Stringer
shop.Cart.Weight -
shop.ErrSoldOut till
shop.Item till/till_test.go
shop.Large shop.Size
shop.New shop.ExampleNew
shop.Payer till.Cash
shop.Size shop.Small
shop.Small till
shop.Total till
shop.Unused -
till.Cash -
till.Cash.Pay shop.Payer
till.Sum -
`), strings.TrimSpace(names))
	require.Regexp(t, `# +16 +1 +0 +3 +3 +5 +4 all 2 packages`, sums)
	require.Regexp(t, `# +13 +1 +0 +3 +3 +4 +2 shop\n# +3 `, sums)
}

func TestAPackageThatDoesNotCompileIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.org/p\n\ngo 1.26\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "p.go"), []byte("package p\n\nfunc F() int { return G() }\n"), 0o600))
	require.ErrorContains(t, run(t.Context(), dir, []string{"./..."}, &strings.Builder{}), "undefined: G")
}
