package overlay

import "testing"

func TestSetRelease(t *testing.T) {
	const name = BundledKubernetesVersion
	for what, c := range map[string]struct{ in, want string }{
		"empty file":             {"", name + "=v1.37.2\n"},
		"appended":               {"ID=hadron\n", "ID=hadron\n" + name + "=v1.37.2\n"},
		"no newline at the end":  {"ID=hadron", "ID=hadron\n" + name + "=v1.37.2\n"},
		"replaced where it was":  {name + "=\"v1.36.3\"\nID=hadron\n", name + "=v1.37.2\nID=hadron\n"},
		"several become one":     {name + "=a\nID=x\n " + name + "=b\n", name + "=v1.37.2\nID=x\n"},
		"longer name is another": {"X_" + name + "=a\n#" + name + "=b\n", "X_" + name + "=a\n#" + name + "=b\n" + name + "=v1.37.2\n"},
	} {
		t.Run(what, func(t *testing.T) {
			got, err := SetRelease([]byte(c.in), name, "v1.37.2")
			if err != nil || string(got) != c.want {
				t.Fatalf("got %q, %v, expected %q", got, err, c.want)
			}
			if again, _ := SetRelease(got, name, "v1.37.2"); string(again) != c.want {
				t.Errorf("a second time it is %q", again)
			}
			if v, ok := Release(got, name); v != "v1.37.2" || !ok {
				t.Errorf("read back %q, %v", v, ok)
			}
		})
	}
	for _, v := range []string{"", "a b", "a\nb", `"a"`, "$(id)"} {
		if _, err := SetRelease(nil, name, v); err == nil {
			t.Errorf("value %q was taken", v)
		}
	}
}

func TestReleaseReadsTheLastAssignment(t *testing.T) {
	if v, ok := Release([]byte("A=1\nA='2'\nAB=3\n"), "A"); v != "2" || !ok {
		t.Errorf("got %q, %v", v, ok)
	}
	if _, ok := Release([]byte("AB=3\n"), "A"); ok {
		t.Error("found a variable that isn't there")
	}
}
