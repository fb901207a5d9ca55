"""What the other rooms share: command lines, files, tables, figures, progress, downloads."""
