from finesight.cli.main import main

main()
