from hetcomm.cli import main

main()
