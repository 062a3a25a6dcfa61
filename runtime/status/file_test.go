package status

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

const boot = "9e2b1a52-2b1f-4f7e-9d0c-5d1f1f0f7b11"

// node makes the folders that a booted node has.
func node(t *testing.T) (*host.Root, string) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"run", "var/log", "etc", "proc/sys/kernel/random"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, dir, "/proc/sys/kernel/random/boot_id", boot+"\n")
	put(t, dir, "/etc/group", fmt.Sprintf("root:x:0:\nadm:x:%d:syslog\n", os.Getgid()))
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, dir
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func converged() Document {
	return Document{Phase: Converged, Role: "worker", Membership: Member, Outcome: "none", LastAction: "reconcile", Version: "v1.0.0", Budget: Budget{60, 2}}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	root, dir := node(t)
	want := converged()
	want.Message = "kubelet\nis well"
	before := time.Now().Add(-time.Second)
	if err := Write(root, want); err != nil {
		t.Fatal(err)
	}
	got := Read(root)
	if got.UpdatedAt.Before(before) || got.UpdatedAt.After(time.Now()) {
		t.Errorf("time is %s", got.UpdatedAt)
	}
	want.APIVersion, want.Message, want.BootID, want.UpdatedAt = APIVersion, "kubelet is well", boot, got.UpdatedAt
	if got != want {
		t.Errorf("got %+v, expected %+v", got, want)
	}
	first, err := os.ReadFile(filepath.Join(dir, Path))
	if err != nil {
		t.Fatal(err)
	}
	mirror, err := os.ReadFile(filepath.Join(dir, Mirror))
	if err != nil || string(mirror) != string(first) {
		t.Errorf("mirror is %q, %v", mirror, err)
	}
	for _, name := range []string{Path, Mirror} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || fi.Mode() != 0o640 {
			t.Errorf("%s: %v, %v, expected mode 0640", name, fi.Mode(), err)
		}
		folder, err := os.Stat(filepath.Dir(filepath.Join(dir, name)))
		if err != nil || folder.Mode().Perm() != 0o755 {
			t.Errorf("%s: folder %v, %v, expected mode 0755", name, folder.Mode(), err)
		}
	}
	for _, key := range []string{"apiVersion: provider-kubernetes.kairos.io/v1\n", "phase: Converged\n", "lastAction: reconcile\n", "bootID: " + boot + "\n", "terminal: false\n"} {
		if !strings.Contains(string(first), key) {
			t.Errorf("document has no %q:\n%s", key, first)
		}
	}
}

func TestTheGroupIsAdmWhereThereIsOne(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("giving a file away needs root")
	}
	for groups, want := range map[string]uint32{"adm:x:4:\n": 4, "admin:x:9:\n": 0, "adm:x:no\nadm\n": 0, "": 0} {
		root, dir := node(t)
		put(t, dir, "/etc/group", groups)
		if err := Write(root, converged()); err != nil {
			t.Fatal(err)
		}
		var s syscall.Stat_t
		if err := syscall.Stat(filepath.Join(dir, Path), &s); err != nil || s.Gid != want || s.Uid != 0 {
			t.Errorf("groups %q: owner %d:%d, %v, expected 0:%d", groups, s.Uid, s.Gid, err, want)
		}
	}
}

func TestWhatCannotBeReadForCertainIsUnknown(t *testing.T) {
	root, dir := node(t)
	if err := Write(root, converged()); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, Path))
	if err != nil {
		t.Fatal(err)
	}
	text := string(good)
	for name, content := range map[string]string{
		"empty":                 "",
		"torn":                  text[:len(text)/2],
		"torn at a line":        text[:strings.Index(text, "role:")],
		"two documents' bytes":  text + "x",
		"two documents":         text + "---\n" + text,
		"zeros":                 strings.Repeat("\x00", 100),
		"another boot":          strings.Replace(text, boot, "0e2b1a52-2b1f-4f7e-9d0c-5d1f1f0f7b11", 1),
		"no boot":               strings.Replace(text, boot, `""`, 1),
		"another format":        strings.Replace(text, "/v1\n", "/v2\n", 1),
		"unknown phase":         strings.Replace(text, "Converged", "Done", 1),
		"the phase Unknown":     strings.Replace(text, "Converged", "Unknown", 1),
		"unknown reason":        strings.Replace(text, `reason: ""`, "reason: Because", 1),
		"unknown role":          strings.Replace(text, "worker", `"\"worker\""`, 1),
		"unknown key":           text + "more: 1\n",
		"a list":                "- phase: Converged\n",
		"json with a tail":      `{"phase":"upgraded"}x`,
		"larger than any":       text + "#" + strings.Repeat("x", maxDocument),
		"outcome of many words": strings.Replace(text, "outcome: none", "outcome: all is well", 1),
	} {
		if content == text {
			t.Fatalf("%s: the replacement did nothing", name)
		}
		put(t, dir, Path, content)
		if got := Read(root); got.Phase != Unknown || got.Membership != MembershipUnknown || got.Message == "" {
			t.Errorf("%s: got %+v, expected Unknown and why", name, got)
		}
	}

	path := filepath.Join(dir, Path)
	elsewhere := filepath.Join(dir, "elsewhere")
	put(t, dir, "elsewhere", text)
	for name, make := range map[string]func() error{
		"missing":     func() error { return nil },
		"a directory": func() error { return os.Mkdir(path, 0o755) },
		"a FIFO":      func() error { return syscall.Mkfifo(path, 0o644) },
		"a link":      func() error { return os.Symlink(elsewhere, path) },
	} {
		if err := errors.Join(os.RemoveAll(path), make()); err != nil {
			t.Fatal(err)
		}
		if got := Read(root); got.Phase != Unknown || got.Message == "" {
			t.Errorf("%s: got %+v, expected Unknown and why", name, got)
		}
	}
}

func TestADocumentOfANodeWithoutABootIdentityIsUnknown(t *testing.T) {
	root, dir := node(t)
	if err := os.Remove(filepath.Join(dir, "proc/sys/kernel/random/boot_id")); err != nil {
		t.Fatal(err)
	}
	if err := Write(root, converged()); err != nil {
		t.Fatal(err)
	}
	if got := Read(root); got.Phase != Unknown {
		t.Errorf("got %+v, expected Unknown", got)
	}
}

func TestWritingReplacesWhatStandsInItsPlaceAndFollowsNothing(t *testing.T) {
	root, dir := node(t)
	if err := os.Mkdir(filepath.Join(dir, "run/provider-kubernetes"), 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "victim", "precious")
	if err := os.Symlink(filepath.Join(dir, "victim"), filepath.Join(dir, Path)); err != nil {
		t.Fatal(err)
	}
	if err := Write(root, converged()); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "victim")); string(b) != "precious" {
		t.Errorf("the link was followed: %q", b)
	}
	if got := Read(root); got.Phase != Converged {
		t.Errorf("got %+v", got)
	}
}

func TestAFailedWriteIsTold(t *testing.T) {
	root, dir := node(t)
	// A directory can't be replaced by a file.
	if err := os.MkdirAll(filepath.Join(dir, Path), 0o755); err != nil {
		t.Fatal(err)
	}
	err := Write(root, converged())
	if err == nil || !strings.Contains(err.Error(), Path) {
		t.Errorf("error is %v, expected one that names %s", err, Path)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, Mirror)); !strings.Contains(string(b), "Converged") {
		t.Errorf("mirror is %q, expected the document all the same", b)
	}

	root, dir = node(t)
	if err := os.Remove(filepath.Join(dir, "var/log")); err != nil {
		t.Fatal(err)
	}
	if err := Write(root, converged()); !errors.Is(err, fs.ErrNotExist) || Read(root).Phase != Converged {
		t.Errorf("error is %v, phase %s, expected the missing folder and the document of this boot", err, Read(root).Phase)
	}
}

func TestOnlyKnownValuesAreWritten(t *testing.T) {
	for name, change := range map[string]func(*Document){
		"phase":      func(d *Document) { d.Phase = Unknown },
		"reason":     func(d *Document) { d.Reason = "Because" },
		"role":       func(d *Document) { d.Role = "master" },
		"membership": func(d *Document) { d.Membership = "" },
		"outcome":    func(d *Document) { d.Outcome = "two words" },
	} {
		root, dir := node(t)
		d := converged()
		change(&d)
		if err := Write(root, d); err == nil {
			t.Errorf("%s: expected an error", name)
		}
		if _, err := os.Stat(filepath.Join(dir, Path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a document was written", name)
		}
	}
}
