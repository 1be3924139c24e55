from finesight.cli import main

main()
