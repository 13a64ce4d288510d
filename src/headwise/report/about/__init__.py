"""What the report says of each study, one file each."""
