package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/kairos-io/provider-kubernetes/builder/publish"
	"github.com/kairos-io/provider-kubernetes/signing"
)

func (a *app) verifyCommand() *cobra.Command {
	var key, out string
	cmd := &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Verify an image's signature by digest",
		Long: `Verify the signature of an image: an OCI layout folder or a registry reference,
by digest or by the one tag it has. A tag is resolved once.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output(out, "text", "json"); err != nil {
				return err
			}
			pub, err := os.ReadFile(key)
			if err != nil {
				return usage("public key: %w; name it with --key", err)
			}
			place, digest, err := a.locate(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			res, err := verifySignature(cmd.Context(), place, digest, pub)
			if err == nil {
				err = whole(cmd.Context(), place)
			}
			if err != nil {
				return err
			}
			if out == "json" {
				return json.NewEncoder(a.stdout).Encode(res)
			}
			_, err = fmt.Fprintf(a.stdout, "verified %s@%s: signature in %s (%s)\n", place, digest, res.Location, res.Form)
			return err
		},
	}
	cmd.Flags().StringVar(&key, "key", filepath.Join(keyFolder(), "cosign.pub"), "public key, PEM")
	cmd.Flags().StringVar(&out, "output", "text", "text or json")
	return cmd
}

// verifySignature checks the signature of the index or manifest with that
// digest, in a layout folder or beside it in a registry, with a public key.
func verifySignature(ctx context.Context, place, digest string, pub []byte) (signing.Result, error) {
	layout := isFolder(place)
	reference := place + "@" + digest
	if layout {
		reference = localRepository + "@" + digest
	}
	ref, err := name.NewDigest(reference, name.StrictValidation)
	if err != nil {
		return signing.Result{}, usage("%w", err)
	}
	policy, err := signing.NewPolicy([]signing.Rule{{Pattern: ref.Context().Name(), PublicKey: string(pub)}}, nil)
	if err != nil {
		return signing.Result{}, err
	}
	v := &signing.Verifier{Policy: policy, Keychain: authn.DefaultKeychain}
	s := signing.Subject{Reference: reference, Repository: ref.Context(), Digest: digest}
	var res signing.Result
	if layout {
		res, err = v.VerifyLayout(ctx, s, place)
	} else {
		res, err = v.Verify(ctx, s)
	}
	if err != nil {
		return res, err
	}
	return res, res.Err()
}

// damaged is a layout in which not everything is what its digest says.
type damaged struct{ err error }

func (e *damaged) Error() string { return e.err.Error() }
func (e *damaged) Unwrap() error { return e.err }

// whole reads a layout to its end, since a signature only says what digest the
// content should have. What comes from a registry is checked by whoever pulls it.
func whole(ctx context.Context, place string) error {
	if !isFolder(place) {
		return nil
	}
	src, err := publish.OpenLayout(place)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := src.Verify(ctx); err != nil && ctx.Err() == nil {
		return &damaged{fmt.Errorf("layout %s is signed, but damaged:\n%w", place, err)}
	}
	return ctx.Err()
}

func isFolder(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// split takes "place@sha256:..." apart; the digest may be missing.
func split(image string) (place, digest string) {
	if i := strings.LastIndex(image, "@sha256:"); i >= 0 {
		return image[:i], image[i+1:]
	}
	return image, ""
}
