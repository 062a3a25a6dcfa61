package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

func TestImportImagesTakesVerifyOnlyAndNothingElse(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"--verify-only", "x"}, {"--verify-only=true"}, {"--verify-only", "--verify-only"}, {"--help"}, {"-h"}, {"--"}, {""}} {
		var stdout, stderr bytes.Buffer
		if code := Main(append([]string{"import-images"}, args...), strings.NewReader(""), &stdout, &stderr); code != 2 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "expected none or --verify-only") {
			t.Errorf("%q: exit %d, output %q, error %q", args, code, &stdout, &stderr)
		}
	}
}

func TestImportImagesExitCodes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a bundle belongs to root: needs root")
	}
	run := func(root string, verify bool) (int, string) {
		var stdout, stderr bytes.Buffer
		code := importImages(t.Context(), root, host.Runner{Dir: root}, verify, &stdout, &stderr)
		return code, stdout.String()
	}
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, verify := range []bool{false, true} {
		if code, out := run(root, verify); code != 0 || !strings.HasPrefix(out, "image-import: summary outcome=not-bundled ") {
			t.Errorf("without a bundle: exit %d, %s", code, out)
		}
	}
	for dir := overlay.BundleDir; dir != "."; dir = filepath.Dir(dir) {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, verify := range []bool{false, true} {
		if code, out := run(root, verify); code != 1 || !strings.Contains(out, "summary outcome=refused ") {
			t.Errorf("without a provider: exit %d, %s", code, out)
		}
	}
	if code, out := run(filepath.Join(root, "nowhere"), false); code != 1 || !strings.HasPrefix(out, "image-import: summary outcome=failed ") {
		t.Errorf("without a root: exit %d, %s", code, out)
	}
}
