package units

import (
	"slices"
	"testing"
)

func TestMissingUnits(t *testing.T) {
	units := []string{"a.service", "b.service"}
	block := func(id, load, active, job string) string {
		s := "Id=" + id + "\nLoadState=" + load + "\nActiveState=" + active + "\n"
		if job != "" {
			s += "Job=" + job + "\n"
		}
		return s
	}
	for name, c := range map[string]struct {
		show string
		want []string
	}{
		"idle":                 {block("a.service", "loaded", "inactive", ""), []string{"a.service"}},
		"no job":               {block("a.service", "loaded", "inactive", "0"), []string{"a.service"}},
		"both":                 {block("a.service", "loaded", "inactive", "") + "\n" + block("b.service", "loaded", "inactive", ""), units},
		"queued":               {block("a.service", "loaded", "inactive", "12"), nil},
		"running":              {block("a.service", "loaded", "active", ""), nil},
		"starting":             {block("a.service", "loaded", "activating", ""), nil},
		"failed":               {block("a.service", "loaded", "failed", ""), nil},
		"masked":               {block("a.service", "masked", "inactive", ""), nil},
		"not found":            {block("a.service", "not-found", "inactive", ""), nil},
		"not readable":         {block("a.service", "bad-setting", "inactive", ""), nil},
		"an alias for another": {block("c.service", "loaded", "inactive", ""), nil},
		"nothing":              {"", nil},
		"cut off":              {"Id=a.service\nLoadState=loaded\nActiveSta", nil},
		"values of two blocks": {"Id=a.service\nLoadState=loaded\n\nActiveState=inactive\n", nil},
	} {
		if got := missing([]byte(c.show), units); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
	}
}

func FuzzMissing(f *testing.F) {
	f.Add([]byte(queued))
	f.Add([]byte("Id=a.service\nLoadState=loaded\nActiveState=inactive\n\n\nId=a.service"))
	f.Add([]byte("=\n==\n\x00"))
	units := []string{"a.service", "b.service"}
	f.Fuzz(func(t *testing.T, show []byte) {
		for _, u := range missing(show, units) {
			if !slices.Contains(units, u) {
				t.Errorf("%q was never asked for", u)
			}
		}
	})
}
