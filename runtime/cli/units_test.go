package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

func TestMigrateUnitsTakesNoArgument(t *testing.T) {
	for _, arg := range []string{"extra", "--help", "-h", "--no-such-flag", "", "--"} {
		var stdout, stderr bytes.Buffer
		if code := Main([]string{"migrate-units", arg}, strings.NewReader(""), &stdout, &stderr); code != 2 || stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), "error: ") {
			t.Errorf("%q: exit %d, output %q, error %q", arg, code, &stdout, &stderr)
		}
	}
}

func TestMigrateUnitsEndsWithTheSummaryAndItsExitCode(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct {
		change func() error // of the file system before
		code   int
		output string
	}{
		{
			func() error { return os.MkdirAll(filepath.Join(root, "etc/systemd/system"), 0o755) }, 0,
			"unit-migrate: summary outcome=clean removed=0 kept=0 overrides=0 reloaded=false\n",
		},
		{
			func() error {
				return os.WriteFile(filepath.Join(root, "etc/systemd/system/kubelet.service"), nil, 0o644)
			}, 1,
			"unit-migrate: kept \"/etc/systemd/system/kubelet.service\" reason=REASON\n" +
				"unit-migrate: summary outcome=kept-modified removed=0 kept=1 overrides=0 reloaded=false\n",
		},
		{
			func() error { return os.RemoveAll(root) }, 1,
			"error: open " + root + ": no such file or directory\n" +
				"unit-migrate: summary outcome=failed removed=0 kept=0 overrides=0 reloaded=false\n",
		},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		reason := "modified"
		if os.Getuid() != 0 {
			reason = "owner"
		}
		var output bytes.Buffer
		code := migrateUnits(t.Context(), root, host.Runner{Dir: root}, &output, &output)
		if want := strings.Replace(c.output, "REASON", reason, 1); code != c.code || output.String() != want {
			t.Errorf("exit %d, output\n%s, expected %d and\n%s", code, &output, c.code, want)
		}
	}
}
