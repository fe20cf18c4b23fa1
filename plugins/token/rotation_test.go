package token_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/token"
)

// The procedure of the README: no instance starts again, one follows the other, and no token is refused before its
// key is removed.
func TestKeysRotateWithoutARestart(t *testing.T) {
	t.Parallel()
	older, newer := pemOf(t, newKey(t, "older")), pemOf(t, newKey(t, "newer"))
	var files []string
	var instances []*token.Plugin
	for range 2 {
		file := filepath.Join(t.TempDir(), "keys.pem")
		pipelinetest.Replace(t, file, older)
		files, instances = append(files, file), append(instances, with(t, token.KeyConfig{File: file}))
	}
	kids := func(p *token.Plugin) (all []string) {
		text, err := p.KeySet()
		require.NoError(t, err)
		var set jose.JSONWebKeySet
		require.NoError(t, json.Unmarshal(text, &set))
		for _, k := range set.Keys {
			all = append(all, k.KeyID)
		}
		return all
	}
	signer := func(raw string) string {
		signed, err := jose.ParseSignedCompact(raw, []jose.SignatureAlgorithm{jose.EdDSA})
		require.NoError(t, err)
		return signed.Signatures[0].Header.KeyID
	}
	before := kids(instances[0])
	require.Len(t, before, 1)
	raws := []string{sign(t, instances[0])}
	require.Equal(t, before[0], signer(raws[0]))
	for _, content := range [][]byte{slices.Concat(older, newer), slices.Concat(newer, older)} {
		for i, p := range instances {
			pipelinetest.Replace(t, files[i], content)
			raws = append(raws, sign(t, p))
			for _, other := range instances {
				for _, raw := range raws {
					_, err := other.Verify("shop", raw)
					require.NoError(t, err)
				}
			}
		}
	}
	both := kids(instances[1])
	require.Equal(t, []string{both[0], before[0]}, both, "the key set has both, as other services read it")
	require.Equal(t, both[0], signer(raws[len(raws)-1]), "the new key signs")
	require.NotEqual(t, before[0], both[0])
	for i, p := range instances {
		pipelinetest.Replace(t, files[i], newer)
		_, err := p.Verify("shop", raws[0])
		require.ErrorIs(t, err, token.ErrForged, "its key is removed")
		_, err = p.Verify("shop", raws[len(raws)-1])
		require.NoError(t, err)
		require.Equal(t, both[:1], kids(p))
	}
}

// The same procedure, again and again, while each instance verifies what the other one signs, at once and a while later.
func TestKeysAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	older := pemOf(t, newKey(t, "older"))
	var files [2]string
	var instances [2]*token.Plugin
	for i := range files {
		files[i] = filepath.Join(t.TempDir(), "keys.pem")
		pipelinetest.Replace(t, files[i], older)
		instances[i] = with(t, token.KeyConfig{File: files[i]})
	}
	var held [4]string // a token of the call before, by goroutine
	load := pipelinetest.StartLoad(t, len(held), func(i int) error {
		raw, err := instances[i%2].Sign(token.Claims{Audience: "shop", Expires: time.Now().Add(time.Hour)})
		if err != nil {
			return err
		}
		for _, presented := range []string{held[i], raw} {
			if presented == "" { // of the first call
				continue
			}
			if _, err := instances[(i+1)%2].Verify("shop", presented); err != nil {
				return err
			}
		}
		held[i] = raw
		return nil
	})
	for n := range 5 {
		newer, leaving := pemOf(t, newKey(t, fmt.Sprint(n))), sign(t, instances[0])
		for _, content := range [][]byte{slices.Concat(older, newer), slices.Concat(newer, older), newer} {
			load.More() // nobody holds a token of the step before
			for _, file := range files {
				pipelinetest.Replace(t, file, content)
			}
		}
		for _, p := range instances {
			_, err := p.Verify("shop", leaving)
			require.ErrorIs(t, err, token.ErrForged)
		}
		older = newer
	}
	load.More()
	load.Stop()
}

// The key of a name is another one from the next token on, and the tokens of the one before are refused: it has leaked.
func TestAKeyIsReplaced(t *testing.T) {
	t.Parallel()
	key := newKey(t, "a")
	p := with(t, key)
	leaked := sign(t, p)
	pipelinetest.Replace(t, key.File, pemOf(t, newKey(t, "b")))
	_, err := p.Verify("shop", leaked)
	require.ErrorIs(t, err, token.ErrForged)
	_, err = p.Verify("shop", sign(t, p))
	require.NoError(t, err)
}

// A file that can't be used leaves the keys as they are, and is said once.
func TestTheLastGoodKeysStayInUse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, file string, good []byte){
		"missing":    func(t *testing.T, file string, _ []byte) { require.NoError(t, os.Remove(file)) },
		"empty":      func(t *testing.T, file string, _ []byte) { require.NoError(t, os.WriteFile(file, nil, 0o600)) },
		"half a key": func(t *testing.T, file string, good []byte) { require.NoError(t, os.WriteFile(file, good[:60], 0o600)) },
		"half of two": func(t *testing.T, file string, good []byte) {
			pipelinetest.Replace(t, file, slices.Concat(pemOf(t, newKey(t, "b")), good[:60]))
		},
		"another kind": func(t *testing.T, file string, _ []byte) {
			curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			require.NoError(t, err)
			der, err := x509.MarshalPKCS8PrivateKey(curve)
			require.NoError(t, err)
			pipelinetest.Replace(t, file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := newKey(t, "")
			var logged strings.Builder
			p := token.New()
			p.Settings().(*token.Config).Keys = []token.KeyConfig{key}
			_, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, p)
			require.NoError(t, err)
			good, raw := pemOf(t, key), sign(t, p)
			spoil(t, key.File, good)
			for range 50 {
				_, err := p.Verify("shop", raw)
				require.NoError(t, err)
				_, err = p.Verify("shop", sign(t, p))
				require.NoError(t, err)
			}
			require.Equal(t, 1, strings.Count(logged.String(), "what it had before stays in use"), "%s", &logged)
			require.Contains(t, logged.String(), "of=plugins.token.keys[0].file")
			require.Contains(t, logged.String(), key.File)

			pipelinetest.Replace(t, key.File, pemOf(t, newKey(t, "c")))
			_, err = p.Verify("shop", raw)
			require.ErrorIs(t, err, token.ErrForged, "a good file is used again")
			require.Contains(t, logged.String(), "file was read again and has changed")
			require.NotContains(t, logged.String(), "PRIVATE KEY")
		})
	}
}
