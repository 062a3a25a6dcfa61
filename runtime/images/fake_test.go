package images

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets this program play ctr when it is started under that name. It
// has no environment to be told by, as ctr has none.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "ctr" {
		code := 0
		if err := fakeCtr(filepath.Join(filepath.Dir(os.Args[0]), stateName), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "time=now level=warning msg=\"something is deprecated\"\nctr:", err)
			code = 1
		}
		unix.Exit(code) // os.Exit would wait a second under the race detector
	}
	os.Exit(m.Run())
}

const stateName = "state.json" // beside ctr

// fakeState is containerd's memory and how it misbehaves.
type fakeState struct {
	Images map[string]*fakeImage
	Calls  []string // arguments behind "-n k8s.io"

	Down        int    // that many calls find no socket; negative is all
	FailImports int    // that many imports fail after they read their input; negative is all
	Hang        bool   // imports never end
	Noise       string // printed by ls in front of the names
	Loses       string // what an import forgets: "digest" or "pin"
}

type fakeImage struct {
	Digest string
	Labels map[string]string
}

var filterForm = regexp.MustCompile(`^name=="([^"]+)",target\.digest==(sha256:[0-9a-f]{64})(?:,labels\."([^"]+)"==(\S+))?$`)

func fakeCtr(memory string, args []string) error {
	b, err := os.ReadFile(memory)
	if err != nil {
		return err
	}
	var s fakeState
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	s.Calls = append(s.Calls, strings.Join(args[2:], " "))
	err = s.call(args)
	if serr := os.WriteFile(memory, marshal(s), 0o600); serr != nil {
		return serr
	}
	if s.Hang && slices.Contains(args, "import") {
		<-time.After(time.Hour)
	}
	return err
}

func (s *fakeState) call(args []string) error {
	if s.Down != 0 {
		s.Down--
		return errors.New("cannot access socket /run/containerd/containerd.sock: no such file or directory")
	}
	if len(args) < 4 || args[0] != "-n" || args[1] != "k8s.io" || args[2] != "images" {
		return fmt.Errorf("unexpected arguments %q", args)
	}
	switch verb, args := args[3], args[4:]; verb {
	case "ls":
		fmt.Print(s.Noise)
		for _, a := range args[1:] {
			f := filterForm.FindStringSubmatch(a)
			if args[0] != "-q" || f == nil {
				return fmt.Errorf("unexpected arguments %q", args)
			}
			if img := s.Images[f[1]]; img != nil && img.Digest == f[2] && (f[3] == "" || img.Labels[f[3]] == f[4]) {
				fmt.Println(f[1])
			}
		}
		return nil
	case "label":
		key, value, _ := strings.Cut(args[1], "=")
		img := s.Images[args[0]]
		if img == nil {
			return fmt.Errorf("image %q: not found", args[0])
		}
		if img.Labels == nil {
			img.Labels = map[string]string{}
		}
		img.Labels[key] = value
		return nil
	case "import":
		if len(args) != 3 || args[0] != "--label" || args[2] != "-" {
			return fmt.Errorf("unexpected arguments %q", args)
		}
		if info, err := os.Stdin.Stat(); err != nil || !info.Mode().IsRegular() {
			return errors.New("standard input is not the archive itself")
		}
		name, img, err := readImage(os.Stdin)
		if err != nil {
			return err
		}
		if s.FailImports != 0 {
			s.FailImports--
			return errors.New("rpc error: transport is closing")
		}
		key, value, _ := strings.Cut(args[1], "=")
		img.Labels = map[string]string{key: value}
		switch s.Loses {
		case "digest":
			img.Digest = "sha256:" + sum(nil)
		case "pin":
			img.Labels = nil
		}
		s.Images[name] = img
		return nil
	}
	return fmt.Errorf("unexpected arguments %q", args)
}

// readImage finds an archive's name and digest.
func readImage(r io.Reader) (string, *fakeImage, error) {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err != nil {
			return "", nil, err
		}
		if h.Name != indexName {
			continue
		}
		var index struct{ Manifests []descriptor }
		if err := json.NewDecoder(tr).Decode(&index); err != nil {
			return "", nil, err
		}
		_, err = io.Copy(io.Discard, r)
		return index.Manifests[0].Annotations[containerdName], &fakeImage{Digest: index.Manifests[0].Digest}, err
	}
}
