package money

import _ "embed"

//go:embed openapi.yaml
var openAPI string

// OpenAPI returns the contract with the Money API, an OpenAPI 3.0 file in YAML.
func OpenAPI() string { return openAPI }
