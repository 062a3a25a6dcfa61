package standin

import (
	"io"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func get(t *testing.T, url, host string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestReferrersAreAnOption(t *testing.T) {
	for on, want := range map[bool]int{true: http.StatusOK, false: http.StatusNotFound} {
		r := NewRegistry(t, Options{Referrers: on})
		d, err := name.NewDigest(r.Push("registry.k8s.io/pause:3.10", Image(t, "linux/amd64", 1)))
		if err != nil {
			t.Fatal(err)
		}
		if status, _ := get(t, r.URL+"/v2/pause/referrers/"+d.DigestStr(), ""); status != want {
			t.Errorf("referrers %v: status %d, expected %d", on, status, want)
		}
	}
}

func TestRegistryServesUnderItsOwnName(t *testing.T) {
	r := NewRegistry(t, Options{Token: true})
	img := Image(t, "linux/amd64", 1)
	ref, err := name.NewDigest(r.Push(r.Host()+"/pause:3.10", img))
	if err != nil {
		t.Fatal(err)
	}
	got, err := remote.Get(ref)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := img.Digest(); got.Digest != want {
		t.Errorf("got %s, expected %s", got.Digest, want)
	}
}

func TestFaultsApplyInOrderAndAreUsedUp(t *testing.T) {
	w := NewWeb(t)
	w.Put("https://dl.k8s.io/stable.txt", []byte("v1.37.2"))
	w.Fail(Fault{Path: "other", Status: 500})
	w.Fail(Fault{Path: "stable", Times: 1, Status: 429})
	w.Fail(Fault{Path: "stable", Times: 1, Flip: true})
	for i, want := range []string{"", "v1.27.2", "v1.37.2"} {
		status, got := get(t, w.URL+"/stable.txt", "dl.k8s.io")
		if i == 0 && status != 429 || got != want {
			t.Errorf("request %d: %d %q, expected %q", i, status, got, want)
		}
	}
	if status, _ := get(t, w.URL+"/stable.txt", "github.com"); status != http.StatusNotFound {
		t.Errorf("another host: status %d", status)
	}
	if n := w.Count("GET", "/stable.txt"); n != 4 {
		t.Errorf("%d requests recorded, expected 4", n)
	}
}
