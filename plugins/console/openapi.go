package console

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// object is one of the JSON of OpenAPI.
type object = map[string]any

// Names of schemas in the document.
const (
	schemaPage  = "Page"
	schemaUse   = "Use"
	schemaError = "Error"
)

const openAPIPath = "openapi.json"

// serveOpenAPI answers with the description of what this process answers below /api/v1/ (OpenAPI 3.0.3).
func (s *server) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	s.writeJSON(w, r, http.StatusOK, s.openAPI())
}

func (s *server) openAPI() object {
	paths := object{"/api/v1/": object{"get": operation("pages", "List the pages", answers(listOf("pages",
		textField("page"), textField("title"), object{"panels": arrayOf(object{"type": "string"})})))}}
	for _, p := range s.pages {
		paths["/api/v1/"+nameOf(p)] = describePage(p)
	}
	if !s.plugin.config.ReadOnly {
		s.describeActions(paths)
	}
	doc := object{
		"openapi": "3.0.3",
		"info":    object{"title": "Millrace console", "version": cmp.Or(s.registry.Env().Version, "unknown"), "description": "What the pages show, and the actions of this process. Addresses and fields are those of the plugins that it has."},
		"paths":   paths,
		"components": object{"schemas": object{
			schemaPage: record(textField("page"), textField("title"), textField("instance"), object{"panels": arrayOf(record(textField("panel"), textField("title"),
				object{"state": enum(stateOK, stateFailed, stateLate, stateAsked)}, optional("problem", object{"type": "string"}),
				optional("masked", object{"type": "integer", "description": "values that are not shown"}),
				object{"at": object{"type": "string", "format": "date-time", "nullable": true, "description": "when the value was read"}},
				object{"value": object{"nullable": true, "description": "null: it is not known"}}))}),
			schemaUse: record(textField("action"), optional("use", object{"type": "string", "description": "absent: a dry run"}), object{"dry_run": object{"type": "boolean"}},
				object{"state": enum(useRunning, useDone, useFailed)}, optional("error", object{"type": "string"}), optional("field", object{"type": "string", "description": "the one that is wrong"}),
				optional("done", object{"type": "integer"}), optional("total", object{"type": "integer"}), optional("said", object{"type": "string"}),
				object{"outcome": object{"nullable": true, "description": "what the command writes with --json"}}),
			schemaError: record(textField("error")),
		}},
	}
	if prefix := s.plugin.config.Prefix; prefix != "" {
		doc["servers"] = []any{object{"url": prefix}}
	}
	return doc
}

func describePage(p page) object {
	names := make([]any, len(p.names))
	for i, name := range p.names {
		names[i] = name
	}
	panel := object{"name": "panel", "in": "query", "description": "only this panel", "schema": object{"type": "string", "enum": names}}
	parameters, seen := []any{panel}, map[string]bool{}
	for _, of := range p.Panels {
		for _, name := range of.Values {
			if !seen[name] {
				parameters = append(parameters, object{"name": name, "in": "query", "schema": arrayOf(object{"type": "string"})})
			}
			seen[name] = true
		}
	}
	page := object{"parameters": parameters, "get": operation("page "+nameOf(p), "Read the page "+p.Title, answers(reference(schemaPage)))}
	if slices.ContainsFunc(p.Panels, func(of console.Panel) bool { return of.Asked || of.Reveal != nil }) {
		post := operation("ask "+nameOf(p), "Read what the page "+p.Title+" has only when it is asked, or is masked", answers(reference(schemaPage)))
		post["requestBody"] = object{"content": object{"application/x-www-form-urlencoded": object{"schema": object{"type": "object", "properties": object{
			"panel":     object{"type": "string", "enum": names, "description": "the panel that is read"},
			revealField: object{"type": "string", "description": "not empty: show what the panel masks, which is recorded"},
			"why":       object{"type": "string", "description": "the reason, which the audit keeps; required with " + revealField},
		}}}}}
		page["post"] = post
	}
	return page
}

func (s *server) describeActions(paths object) {
	use := answers(reference(schemaUse))
	running := object{"description": "It still runs.", "headers": object{"Location": object{"description": "where its state is", "schema": object{"type": "string"}}}, "content": content(reference(schemaUse))}
	id := []any{object{"name": "id", "in": "path", "required": true, "schema": object{"type": "string"}}}
	paths["/api/v1/"+actionsPath] = object{"get": operation("actions", "List the actions, and which of them you may use", answers(listOf("actions", textField("action"), textField("path"),
		textField("plugin"), textField("short"), optional("long", object{"type": "string"}), textField("danger"), textField("role"), object{"allowed": object{"type": "boolean"}},
		object{"audited": object{"type": "boolean", "description": "why is required"}}, object{"fields": arrayOf(record(textField("name"), object{"type": enum(typeText, typeNumber, typeSwitch, typeList)},
			object{"required": object{"type": "boolean"}}, optional("default", object{"type": "string"}), textField("help")))})))}
	paths["/api/v1/"+actionsPath+"/"+usesPath+"/{id}"] = object{"parameters": id, "get": operation("use", "Read what an action has done", use)}
	stop := answers(reference(schemaUse))
	stop["202"] = running
	paths["/api/v1/"+actionsPath+"/"+usesPath+"/{id}/stop"] = object{"parameters": id, "post": operation("stop", "Stop an action that runs", stop)}
	for _, a := range s.actions {
		did := answers(reference(schemaUse))
		did["202"] = running
		one := operation("do "+a.Name, a.Short, did)
		one["description"], one["tags"] = a.words(a.Long), []any{a.Plugin}
		one["x-role"], one["x-danger"] = a.Needs(), a.Danger
		one["requestBody"] = object{"required": true, "content": content(requestOf(a))}
		paths["/api/v1/"+actionsPath+"/"+a.Path] = object{"post": one}
	}
}

// requestOf is the schema of the body that uses an action.
func requestOf(a action) object {
	fields, required := object{}, []any{}
	for _, f := range a.Fields {
		one := map[operate.FieldType]object{
			operate.Text: {"type": "string"}, operate.Number: {"type": "integer"}, operate.Switch: {"type": "boolean"}, operate.List: arrayOf(object{"type": "string"}),
		}[f.Type]
		one["description"] = a.words(f.Help)
		switch {
		case f.Default == "" || f.Type == operate.List:
		case f.Type == operate.Number:
			one["default"] = operate.Input{f.Name: {f.Default}}.Number(f.Name)
		case f.Type == operate.Switch:
			one["default"] = f.Default == "true"
		default:
			one["default"] = f.Default
		}
		fields[f.Name] = one
		if f.Required {
			required = append(required, f.Name)
		}
	}
	input := object{"type": "object", "properties": fields, "additionalProperties": false}
	why := "the reason, which the audit keeps"
	if a.Audited {
		why += "; required without dry_run"
	}
	body := object{"type": "object", "additionalProperties": false, "properties": object{
		"input":   input,
		"why":     object{"type": "string", "description": why},
		"dry_run": object{"type": "boolean", "description": "say what would be done"},
		"use":     object{"type": "string", "pattern": useShape.String(), "description": "your id of this use: sent twice, the action is done once"},
	}}
	if len(required) > 0 {
		input["required"], body["required"] = required, []any{"input"}
	}
	return body
}

func operation(id, summary string, responses object) object {
	return object{"operationId": id, "summary": summary, "responses": responses}
}

// answers are those of a request that is done. Errors have a text, and those of an action all fields of a use.
func answers(schema object) object {
	return object{
		"200":     object{"description": "OK", "content": content(schema)},
		"default": object{"description": "The error says what to do.", "content": content(reference(schemaError))},
	}
}

func content(schema object) object { return object{"application/json": object{"schema": schema}} }

func reference(schema string) object { return object{"$ref": "#/components/schemas/" + schema} }

func arrayOf(items object) object { return object{"type": "array", "items": items} }

func enum(values ...any) object { return object{"type": "string", "enum": values} }

func textField(name string) object { return object{name: object{"type": "string"}} }

// optional is a field of a record that may be absent.
func optional(name string, schema object) object { return object{"?" + name: schema} }

// record is an object with fields.
func record(fields ...object) object {
	all, required := object{}, []any{}
	for _, field := range fields {
		for name, schema := range field {
			if name[0] == '?' {
				name = name[1:]
			} else {
				required = append(required, name)
			}
			all[name] = schema
		}
	}
	return object{"type": "object", "properties": all, "required": required}
}

// listOf is an object whose only field is a list of records.
func listOf(name string, fields ...object) object {
	return record(object{name: arrayOf(record(fields...))})
}
