"""The command line: parse, call one library function, render. Only this layer prints or exits."""
