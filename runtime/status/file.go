package status

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kairos-io/provider-kubernetes/runtime/host"
)

// maxDocument bounds what Read takes in, in bytes; a document has some hundred.
const maxDocument = 64 << 10

// Write stores d at Path and at Mirror, each atomically and durably, readable
// for root and for group adm where the node has one. It fills in the format, the
// boot and the time, and sanitises the message; a value outside its closed set
// is an error and nothing is written. Both places are tried: what failed is in
// the error, what worked stays.
func Write(root *host.Root, d Document) error {
	d.APIVersion = APIVersion
	d.Message = Sanitize(d.Message)
	d.BootID, d.UpdatedAt = BootID(root), time.Now().UTC().Truncate(time.Second)
	if err := d.check(); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	b, err := yaml.Marshal(d)
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	gid := group(root, "adm")
	var errs []error
	for _, name := range []string{Path, Mirror} {
		err := makeDir(root, path.Dir(name))
		if err == nil {
			err = root.WriteFile(name, b, 0o640, -1, gid)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("write status: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Read returns this boot's document. When there is none, or it can't be read as
// a whole, or an earlier boot wrote it, the phase is Unknown and the message
// says why.
func Read(root *host.Root) Document {
	d, err := read(root)
	if err != nil {
		return Document{APIVersion: APIVersion, Phase: Unknown, Membership: MembershipUnknown, Message: Sanitize(err.Error())}
	}
	return d
}

func read(root *host.Root) (Document, error) {
	var d Document
	b, err := ReadFile(root, Path, maxDocument)
	if err != nil {
		return d, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&d); err != nil {
		return d, fmt.Errorf("%s is no status document: %w", Path, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return d, fmt.Errorf("%s goes on after its document", Path)
	}
	if err := d.check(); err != nil {
		return d, fmt.Errorf("%s: %w", Path, err)
	}
	if boot := BootID(root); boot == "" || d.BootID != boot {
		return d, fmt.Errorf("%s was written in boot %q, this is %q", Path, d.BootID, boot)
	}
	// It may have been edited by hand.
	d.Message = Sanitize(d.Message)
	return d, nil
}

// BootID returns the kernel's identity of this boot, or the empty string.
func BootID(root *host.Root) string {
	b, err := ReadFile(root, "/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ReadFile returns the content of a regular file of at most limit bytes that is
// reached without a link.
func ReadFile(root *host.Root, name string, limit int64) ([]byte, error) {
	dir, err := root.OpenDir(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	f, err := dir.Open(path.Base(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if s, err := host.StatFile(f); err != nil || !s.Mode.IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("read %s: it is not a regular file", name))
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("read %s: it has more than %d bytes", name, limit)
	}
	return b, nil
}

// makeDir makes the last component of a folder's path when it is missing.
func makeDir(root *host.Root, name string) error {
	parent, err := root.OpenDir(path.Dir(name))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	if err := parent.Mkdir(path.Base(name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// group returns the number of a group, or -1 (root's own) when there is none.
func group(root *host.Root, name string) int {
	b, err := ReadFile(root, "/etc/group", 1<<20)
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Split(line, ":"); len(f) >= 3 && f[0] == name {
			if gid, err := strconv.Atoi(f[2]); err == nil && gid >= 0 {
				return gid
			}
		}
	}
	return -1
}
