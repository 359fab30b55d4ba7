package testserver

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Read returns a page.
func Read(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	Check(t, err)
	return string(page)
}

// Blocks returns the code blocks of a language in a page, in their order.
func Blocks(page, language string) []string {
	var found []string
	for _, rest := range strings.Split(page, "```"+language+"\n")[1:] {
		found = append(found, strings.SplitN(rest, "```", 2)[0])
	}
	return found
}

// Run runs a program, and checks what it prints.
func Run(t *testing.T, program, expected string) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "main.go")
	Check(t, os.WriteFile(source, []byte(program), 0o644))
	said, err := exec.Command("go", "run", source).CombinedOutput()
	if err != nil || string(said) != expected {
		t.Errorf("printed %q instead of %q: %v\n%s", said, expected, err, program)
	}
}

// RunPrograms runs each program of a page, and checks that it prints the block of text after it.
// The addresses in the programs are replaced.
func RunPrograms(t *testing.T, path string, addresses ...string) {
	t.Helper()
	page := Read(t, path)
	programs, texts := Blocks(page, "go"), Blocks(page, "text")
	if len(programs) == 0 || len(programs) != len(texts) {
		t.Fatalf("%d programs and %d texts", len(programs), len(texts))
	}
	for i, program := range programs {
		formatted, err := format.Source([]byte(program))
		Check(t, err)
		Equal(t, "formatted", string(formatted), program)
		Run(t, strings.NewReplacer(addresses...).Replace(program), texts[i])
	}
}

// Calls returns the calls in a column of a table of a page. Columns count from 0, and header is the
// begin of the table.
func Calls(t *testing.T, path, header string, column int) (calls []string) {
	t.Helper()
	_, table, _ := strings.Cut(Read(t, path), "\n"+header)
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n")[2:] {
		cell := strings.Split(row, " | ")[column]
		for _, code := range regexp.MustCompile("`([^`]+\\))`").FindAllStringSubmatch(cell, -1) {
			calls = append(calls, code[1])
		}
	}
	if len(calls) < 5 {
		t.Fatalf("%d calls in the table %s", len(calls), header)
	}
	return calls
}

// The functions of a program of calls. A call must return no error, and no zero value.
const did = `
func did(results ...any) {
	for _, result := range results {
		_, isError := result.(error)
		if isError || result != nil && reflect.ValueOf(result).IsZero() {
			panic(fmt.Sprint(result))
		}
	}
}
`

var acquires = regexp.MustCompile(`Obtain|Acquire|\.(Try)?Lock`)

// RunCalls runs calls in a program of imports and set-up. All keys are free before a call that
// acquires, and hold runs before any other.
func RunCalls(t *testing.T, imports, setUp, hold string, calls []string) {
	t.Helper()
	lines := []string{
		"package main", "import (", `"context"`, `"fmt"`, `"reflect"`, `"time"`,
		`"github.com/redis/go-redis/v9"`, imports, ")", did, "func main() {", setUp,
	}
	for _, call := range calls {
		lines = append(lines, "client.FlushAll(ctx)")
		if !acquires.MatchString(call) {
			lines = append(lines, hold)
		}
		if results, value, isAssigned := strings.Cut(call, " := "); isAssigned {
			lines = append(lines, results+" = "+value)
			call = results
		}
		lines = append(lines, "did("+call+")")
	}
	Run(t, strings.Join(append(lines, "}"), "\n"), "")
}
