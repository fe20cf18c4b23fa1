package configs

import (
	"errors"
	"path/filepath"
	"strings"
)

// credentialsVariable names the folder in which systemd puts what a unit's LoadCredential= loads.
const credentialsVariable = "CREDENTIALS_DIRECTORY"

// credentialsIn returns the value of credentialsVariable, "" when it is not set.
func credentialsIn(environ []string) (dir string) {
	for _, pair := range environ {
		if value, ok := strings.CutPrefix(pair, credentialsVariable+"="); ok {
			dir = value
		}
	}
	return dir
}

// resolve returns a text of the settings with the folder of credentials in place of the variable that
// it begins with, also after file:. Any other text stays as it is.
func (w *walker) resolve(text string) (string, error) {
	path, isSecret := strings.CutPrefix(text, "file:")
	name, found := strings.CutPrefix(path, "$"+credentialsVariable+"/")
	if !found {
		return text, nil
	}
	if w.credentials == "" {
		return "", errors.New("environment variable " + credentialsVariable + ", which systemd sets for a unit with LoadCredential, and " +
			"root for a command beside it (" + credentialsVariable + "=/etc/credstore), is not set")
	}
	if path = filepath.Join(w.credentials, name); isSecret {
		path = "file:" + path
	}
	return path, nil
}
