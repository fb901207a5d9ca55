"""What every room stands on: command lines, files, tables, figures, progress, downloads."""
