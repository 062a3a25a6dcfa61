package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// file is one file of the checkout; its path is relative to the top.
type file struct {
	path    string
	content []byte
}

// checkout returns every file that is not built, sorted by path.
func checkout(t *testing.T) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		switch rel = filepath.ToSlash(rel); {
		case err != nil:
			return err
		case rel == ".git" || rel == "bin" || rel == "out":
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			files = append(files, file{rel, b})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// forbidden is text that no file may hold, written so that this file doesn't.
var forbidden = []struct {
	text   *regexp.Regexp
	reason string
}{
	{regexp.MustCompile(`\b(proxy\.golang|goproxy\.(io|cn|dev))\b`), "the go command knows where modules are; a host that is written down breaks whoever uses another"},
	{regexp.MustCompile(`\b(deb|security|archive|snapshot|ftp)\.debian\b`), "apt knows where packages are; a host that is written down breaks whoever uses a mirror"},
	{regexp.MustCompile(`\bregistry\.(npmjs|yarnpkg)\b`), "nothing here comes from there"},
	{regexp.MustCompile(`(^|[^\w.~-])/(work|root|home)/`), "a path of one machine; the checkout may lie anywhere"},
}

func TestNoFileNamesAPackageHostOrAWorkplace(t *testing.T) {
	for _, f := range checkout(t) {
		if bytes.IndexByte(f.content, 0) >= 0 {
			t.Errorf("%s is not a text file: what it holds can't be reviewed", f.path)
			continue
		}
		n := 0
		for line := range strings.Lines(string(f.content)) {
			n++
			for _, x := range forbidden {
				if found := x.text.FindString(line); found != "" {
					t.Errorf("%s:%d: %q: %s", f.path, n, found, x.reason)
				}
			}
		}
	}
}

func TestTheLicenceIsThere(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("LICENSE does not say %q", want)
		}
	}
}

func TestEveryPackageAndExportedNameIsDocumented(t *testing.T) {
	set := token.NewFileSet()
	commented := map[string]bool{} // by folder
	var findings []string
	for _, f := range checkout(t) {
		folder := path.Dir(f.path)
		// The tools modules are written by a program and built from nothing.
		if path.Ext(f.path) != ".go" || strings.HasPrefix(f.path, "matrix/modules/") {
			continue
		}
		syntax, err := parser.ParseFile(set, f.path, f.content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		name := syntax.Name.Name
		if strings.HasSuffix(name, "_test") {
			continue
		}
		begins := "Package " + name + " "
		if name == "main" {
			begins = "Command "
		}
		commented[folder] = commented[folder] || strings.HasPrefix(syntax.Doc.Text(), begins)
		if name != "main" && !strings.HasSuffix(f.path, "_test.go") {
			for _, n := range undocumented(syntax) {
				findings = append(findings, fmt.Sprintf("%s: %s has no comment", set.Position(n.Pos()), n.Name))
			}
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(commented)) {
		if !commented[folder] {
			findings = append(findings, folder+" has no package comment")
		}
	}
	for _, f := range findings {
		t.Error(f)
	}
}

// obvious are methods whose interface says what they do.
var obvious = map[string]bool{
	"Error": true, "Unwrap": true, "String": true, "MarshalText": true, "UnmarshalText": true,
	"Read": true, "Write": true, "Close": true, "RoundTrip": true, "ServeHTTP": true,
}

// undocumented returns the exported names of a file that have no comment. One
// on a group of constants or variables is enough for all of them.
func undocumented(f *ast.File) []*ast.Ident {
	var found []*ast.Ident
	need := func(name *ast.Ident, comments ...*ast.CommentGroup) {
		if name.IsExported() && !slices.ContainsFunc(comments, func(c *ast.CommentGroup) bool { return c != nil }) {
			found = append(found, name)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil && (obvious[d.Name.Name] || !exportedReceiver(d.Recv.List[0].Type)) {
				continue
			}
			need(d.Name, d.Doc)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					need(s.Name, d.Doc, s.Doc, s.Comment)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						need(name, d.Doc, s.Doc, s.Comment)
					}
				}
			}
		}
	}
	return found
}

func exportedReceiver(e ast.Expr) bool {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

func TestUndocumentedFindsWhatHasNoComment(t *testing.T) {
	const src = `package x
type A struct{}
// B is documented.
type B struct{}
func (A) Error() string { return "" }
func (A) M() {}
func (*b[T]) N() {}
// Some names.
const (
	C = 1
)
var (
	D = 1
	E = 2 // documented
	f = 3
)
func G() {}
`
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range undocumented(f) {
		got = append(got, n.Name)
	}
	if want := []string{"A", "M", "D", "G"}; !slices.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
}
